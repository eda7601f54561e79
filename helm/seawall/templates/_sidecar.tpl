{{- /*
The library: what your own workload includes. As a dependency of your chart, with `mode: sidecar`:

  spec:
    terminationGracePeriodSeconds: {{ include "seawall.gracePeriod" .Subcharts.seawall }}
    initContainers:
      {{- include "seawall.sidecar" .Subcharts.seawall | nindent 6 }}
    containers:
      - name: agent
        env:
          {{- include "seawall.agentEnv" .Subcharts.seawall | nindent 10 }}
    volumes:
      {{- include "seawall.volumes" .Subcharts.seawall | nindent 6 }}
*/ -}}

{{- /* The gateway's container, whichever pod it is in. */ -}}
{{- define "seawall.container" -}}
name: seawall
image: {{ include "seawall.image" (dict "image" .Values.image "version" .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - serve
  {{- if .Values.server }}
  - --config=/etc/seawall/seawall.yaml
  {{- end }}
  - --manifest=/etc/seawall/manifest.yaml
  - --data=/var/lib/seawall/journal
  {{- if .Values.secrets.existingSecret }}
  - --secrets=/run/secrets/seawall
  {{- end }}
  - --listen={{ ternary "" "127.0.0.1" (eq .Values.mode "standalone") }}:{{ .Values.ports.agents }}
  - --control={{ include "seawall.control" . }}
  - --metrics=:{{ .Values.ports.metrics }}
  - --drain={{ include "seawall.drain" . }}s
  {{- if .Values.secrets.tokens }}
  - --tokens=/run/secrets/seawall/{{ .Values.secrets.tokens }}
  {{- else if eq .Values.mode "standalone" }}
  - --allow-unauthenticated=true
  {{- end }}
env:
  - name: SEAWALL_CONTROL
    value: {{ include "seawall.control" . | quote }}
  {{- with .Values.secrets.journalKeys }}
  - name: SEAWALL_JOURNAL_KEYS
    value: /run/secrets/seawall/{{ . }}
  {{- end }}
  {{- range $name, $value := omit .Values.extraEnv "SEAWALL_CONTROL" "SEAWALL_JOURNAL_KEYS" }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
ports:
  {{- if eq .Values.mode "standalone" }}
  - name: agents
    containerPort: {{ .Values.ports.agents }}
  {{- end }}
  - name: seawall-metrics
    containerPort: {{ .Values.ports.metrics }}
startupProbe:
  httpGet: {path: /readyz, port: seawall-metrics}
  periodSeconds: 1
  failureThreshold: 120
readinessProbe:
  httpGet: {path: /readyz, port: seawall-metrics}
  periodSeconds: 5
livenessProbe:
  httpGet: {path: /healthz, port: seawall-metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- if eq .Values.mode "standalone" }}
lifecycle:
  preStop:
    sleep: {seconds: 5}
{{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- include "seawall.securityContext" . | nindent 2 }}
volumeMounts:
  - name: seawall-config
    mountPath: /etc/seawall
    readOnly: true
  - name: seawall-data
    mountPath: /var/lib/seawall
  - name: seawall-run
    mountPath: /run/seawall
  {{- if .Values.secrets.existingSecret }}
  - name: seawall-secrets
    mountPath: /run/secrets/seawall
    readOnly: true
  {{- end }}
{{- end }}

{{- define "seawall.securityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* Items for `initContainers`, before all others: a native sidecar, so that it starts before the agent, ends after it,
and lets Jobs complete. No preStop: that would run while the agent still needs us. */ -}}
{{- define "seawall.sidecar" -}}
{{- include "seawall.refusals" . -}}
{{- if .Values.egressGuard.enabled -}}
- {{- include "seawall.guard" . | nindent 2 }}
{{ end -}}
- {{- include "seawall.container" . | nindent 2 }}
  restartPolicy: Always
{{- end }}

{{- define "seawall.guard" -}}
name: seawall-guard
image: {{ include "seawall.image" (dict "image" .Values.egressGuard.image "version" .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.egressGuard.image.pullPolicy }}
args: [-f, /etc/seawall/guard.nft]
securityContext:
  runAsUser: 0
  runAsNonRoot: false
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL], add: [NET_ADMIN]}
  seccompProfile: {type: RuntimeDefault}
resources:
  requests: {cpu: 10m, memory: 16Mi}
  limits: {memory: 64Mi}
volumeMounts:
  - name: seawall-config
    mountPath: /etc/seawall
    readOnly: true
{{- end }}

{{- /* Items for `volumes`. */ -}}
{{- define "seawall.volumes" -}}
- name: seawall-config
  configMap:
    name: {{ include "seawall.fullname" . }}
- name: seawall-run
  emptyDir:
    medium: Memory
    sizeLimit: 16Mi
{{- if .Values.secrets.existingSecret }}
- name: seawall-secrets
  secret:
    secretName: {{ .Values.secrets.existingSecret }}
    # Only the gateway's container mounts it. A pod with an fsGroup can read 0400; without one only 0444 is readable.
    defaultMode: {{ ternary 256 292 (eq .Values.mode "standalone") }}
{{- end }}
{{- $type := include "seawall.persistenceType" . }}
{{- if eq $type "ephemeral" }}
- name: seawall-data
  emptyDir:
    sizeLimit: {{ .Values.persistence.size }}
{{- else if eq $type "existing" }}
- name: seawall-data
  persistentVolumeClaim:
    claimName: {{ .Values.persistence.existingClaim }}
{{- end }}
{{- end }}

{{- /* Items for the agent container's `env`: base URLs by tool, each name once. */ -}}
{{- define "seawall.agentEnv" -}}
{{- range $name, $value := fromJson (include "seawall.agentVariables" .) }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "seawall.agentVariables" -}}
{{- $base := printf "http://127.0.0.1:%v" .Values.ports.agents -}}
{{- if eq .Values.mode "standalone" -}}
{{- $base = printf "http://%s.%s.svc:%v" (include "seawall.fullname" .) .Release.Namespace .Values.ports.agents -}}
{{- end -}}
{{- $all := dict "SEAWALL_URL" $base -}}
{{- if .Values.agent.baseUrls -}}
{{- range $tool, $_ := (fromYaml (include "seawall.manifest" .)).tools | default dict -}}
{{- $_ := set $all (printf "%s_BASE_URL" (regexReplaceAll "[^A-Z0-9]" (upper $tool) "_")) (printf "%s/%s" $base $tool) -}}
{{- end -}}
{{- end -}}
{{- if .Values.agent.httpProxy -}}
{{- $host := regexReplaceAll "^http://([^:]+):.*$" $base "${1}" -}}
{{- range $name := list "HTTP_PROXY" "http_proxy" -}}{{- $_ := set $all $name $base -}}{{- end -}}
{{- range $name := list "NO_PROXY" "no_proxy" -}}
{{- $_ := set $all $name (list "127.0.0.1" "localhost" $host | uniq | join ",") -}}
{{- end -}}
{{- end -}}
{{- range $name, $path := .Values.agent.env -}}
{{- $_ := set $all $name (printf "%s/%s" $base $path) -}}
{{- end -}}
{{ toJson $all }}
{{- end }}

{{- /* Annotations for the pod's template: it restarts when settings change that are read only at the start. */ -}}
{{- define "seawall.podAnnotations" -}}
seawall.dev/settings: {{ toJson .Values.server | sha256sum | trunc 16 | quote }}
{{- end }}
