{{- /* Combinations that would lose effects or let anybody in. Each is refused with what to do instead. */ -}}
{{- define "seawall.refusals" -}}
{{- $type := include "seawall.persistenceType" . -}}
{{- $undoable := include "seawall.undoable" . -}}
{{- if and .Values.manifestText (gt (len .Values.manifest) 0) -}}
{{- fail "seawall: give the manifest as `manifest` or as `manifestText`, not as both." -}}
{{- end -}}
{{- $manifest := fromYaml (include "seawall.manifest" .) -}}
{{- if hasKey $manifest "Error" -}}
{{- fail (printf "seawall: manifestText is no YAML: %s. `seawall check FILE` says more." $manifest.Error) -}}
{{- end -}}
{{- if and (not $manifest.tools) (not (and .Values.injector.enabled (eq .Values.mode "sidecar"))) -}}
{{- fail "seawall: the manifest names no tool. Set `manifest`, or give a file: --set-file manifestText=manifest.yaml" -}}
{{- end -}}
{{- range $manifest.include -}}
{{- if not (hasPrefix "seawall:" .) -}}
{{- fail (printf "seawall: the manifest includes %q, which is not in the image. Only what comes with Seawall can be included here, such as seawall:policies/external.yaml; write the rest into the manifest." .) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $type "ephemeral") $undoable (not .Values.persistence.acceptJournalLoss) -}}
{{- fail (printf "seawall: %s must be undone or never repeated, but the journal would lie on an emptyDir and be lost with the pod. Use persistence.type claim (standalone), existing or workload; or, if you accept that a lost pod leaves effects that nobody undoes, set persistence.acceptJournalLoss." ($undoable | replace " " ", ")) -}}
{{- end -}}
{{- if and (eq $type "existing") (not .Values.persistence.existingClaim) -}}
{{- fail "seawall: persistence.type existing needs persistence.existingClaim, the name of a PVC." -}}
{{- end -}}
{{- if and (eq $type "claim") (eq .Values.mode "sidecar") -}}
{{- fail "seawall: a sidecar's claim is your workload's: name a PVC (persistence.type existing), or bring a volume named seawall-data, as by volumeClaimTemplates of a StatefulSet (persistence.type workload)." -}}
{{- end -}}
{{- if and (eq $type "workload") (eq .Values.mode "standalone") -}}
{{- fail "seawall: persistence.type workload is for sidecar mode; standalone use claim or existing." -}}
{{- end -}}
{{- if gt (int .Values.replicas) 1 -}}
{{- fail (printf "seawall: replicas is %d, but an SQLite journal has one writer, and a second replica would not see the first one's runs. Set replicas to 1; for more throughput install one release per group of agents." (int .Values.replicas)) -}}
{{- end -}}
{{- $control := include "seawall.control" . -}}
{{- if and (not .Values.secrets.tokens) (not (regexMatch "^(unix:/.+|127\\.[0-9.]+:[0-9]+|localhost:[0-9]+|\\[::1\\]:[0-9]+)$" $control)) -}}
{{- fail (printf "seawall: control.listen %s can be reached from other machines, and nobody has to prove who they are there. Leave it empty and use kubectl port-forward or kubectl exec, or set secrets.tokens; health and metrics have ports.metrics." $control) -}}
{{- end -}}
{{- if and .Values.secrets.tokens (not .Values.secrets.existingSecret) -}}
{{- fail "seawall: secrets.tokens is a key of secrets.existingSecret, which names no Secret." -}}
{{- end -}}
{{- if and .Values.secrets.journalKeys (not .Values.secrets.existingSecret) -}}
{{- fail "seawall: secrets.journalKeys is a key of secrets.existingSecret, which names no Secret." -}}
{{- end -}}
{{- if and .Values.secrets.journalKeys (dig "journal" "keys" "" .Values.server) -}}
{{- fail "seawall: the journal's key ring is named twice, by secrets.journalKeys and by server.journal.keys. Leave one out." -}}
{{- end -}}
{{- if and (eq .Values.mode "standalone") (not .Values.networkPolicy.enabled) (not .Values.secrets.tokens) -}}
{{- fail "seawall: a standalone gateway listens beyond loopback without authentication of agents; only its network policies keep others out. Set networkPolicy.enabled to true, give agents tokens (secrets.tokens), or use mode sidecar." -}}
{{- end -}}
{{- range $image := list .Values.image .Values.egressGuard.image -}}
{{- if and (eq $image.tag "latest") (not $image.digest) -}}
{{- fail (printf "seawall: %s:latest changes under a running release. Name a version, or better a digest." $image.repository) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.terminationGracePeriodSeconds (lt (int .Values.terminationGracePeriodSeconds) (include "seawall.leastGrace" . | int)) -}}
{{- fail (printf "seawall: terminationGracePeriodSeconds is %d, but the manifest allows a call %s s, and what is cut off is in doubt. At least %s, or shorten timeouts.total." (int .Values.terminationGracePeriodSeconds) (include "seawall.longest" .) (include "seawall.leastGrace" .)) -}}
{{- end -}}
{{- if and (contains "${secret:" (include "seawall.manifest" .)) (not .Values.secrets.existingSecret) (not $manifest.secrets) -}}
{{- fail "seawall: the manifest refers to ${secret:…}, but secrets.existingSecret names no Secret. Make one whose keys are those names: kubectl create secret generic seawall-tools --from-file=payments=./key" -}}
{{- end -}}
{{- if and .Values.egressGuard.enabled (eq .Values.mode "standalone") -}}
{{- fail "seawall: egressGuard is for sidecar mode; standalone use networkPolicy.confineAgents." -}}
{{- end -}}
{{- range $name, $_ := .Values.extraEnv -}}
{{- if hasPrefix "SEAWALL_SECRET_" $name -}}
{{- fail (printf "seawall: extraEnv.%s would put a credential into the pod's description. Use secrets.existingSecret." $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.injector.tls.existingSecret (not .Values.injector.tls.caBundle) -}}
{{- fail "seawall: injector.tls.existingSecret needs injector.tls.caBundle, the CA that the API server shall trust." -}}
{{- end -}}
{{- end }}

{{- /* Cuts link-local and metadata addresses out of a network: prints `except` items, or fails if nothing else is in it. */ -}}
{{- define "seawall.except" -}}
{{- $cidr := . -}}
{{- $parts := splitList "/" $cidr -}}
{{- if ne (len $parts) 2 -}}
{{- fail (printf "seawall: networkPolicy.egress: %s is no network; write it as 203.0.113.0/24." $cidr) -}}
{{- end -}}
{{- $bits := int (index $parts 1) -}}
{{- if contains ":" $cidr -}}
{{- if eq $cidr "::/0" -}}
["fe80::/10","fd00:ec2::/32"]
{{- else if or (lt $bits 16) (regexMatch "^(fe[89ab]|fd00:0?ec2)" (lower $cidr)) -}}
{{- fail (printf "seawall: networkPolicy.egress: %s would open link-local or metadata addresses. Name a narrower network, or ::/0 from which they are cut out." $cidr) -}}
{{- else -}}
[]
{{- end -}}
{{- else -}}
{{- $octets := splitList "." (index $parts 0) -}}
{{- if ne (len $octets) 4 -}}
{{- fail (printf "seawall: networkPolicy.egress: %s is no network; write it as 203.0.113.0/24." $cidr) -}}
{{- end -}}
{{- $address := add (mul (int (index $octets 0)) 16777216) (mul (int (index $octets 1)) 65536) (mul (int (index $octets 2)) 256) (int (index $octets 3)) -}}
{{- $size := 1 -}}
{{- range until (int (sub 32 (min $bits 16))) -}}
{{- $size = mul $size 2 -}}
{{- end -}}
{{- if ne (div $address $size) (div 2851995648 $size) -}}
[]
{{- else if ge $bits 16 -}}
{{- fail (printf "seawall: networkPolicy.egress: %s is link-local, where clouds serve credentials (169.254.169.254). A gateway never needs it." $cidr) -}}
{{- else -}}
["169.254.0.0/16"]
{{- end -}}
{{- end -}}
{{- end }}
