{{- /* The manifest as text, whichever way it was given. */ -}}
{{- define "seawall.manifest" -}}
{{- if .Values.manifestText -}}
{{ .Values.manifestText }}
{{- else -}}
{{ toYaml .Values.manifest }}
{{- end }}
{{- end }}

{{- /* A time such as 500ms, 2s or 1h30m in seconds; a bare number is seconds. */ -}}
{{- define "seawall.seconds" -}}
{{- $text := toString . -}}
{{- if regexMatch "^[0-9.]+$" $text -}}
{{ $text }}
{{- else -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h|d)" $text -1 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $total = addf $total (mulf (float64 (trimSuffix $unit .)) (get $units $unit)) -}}
{{- end -}}
{{ $total }}
{{- end }}
{{- end }}

{{- /* The longest a call may take, in whole seconds, over every operation of the manifest: operation over tool over
domain over the shipped policies over the default. */ -}}
{{- define "seawall.longest" -}}
{{- $manifest := fromYaml (include "seawall.manifest" .) -}}
{{- $shipped := fromYaml (include "seawall.shippedDomains" .) -}}
{{- $default := float64 (include "seawall.defaultTotal" .) -}}
{{- $longest := 1.0 -}}
{{- range $tool := $manifest.tools | default dict -}}
{{- $ofDomain := $default -}}
{{- with $tool.domain -}}
{{- $ofDomain = get $shipped . | default $default -}}
{{- with dig "domains" . "timeouts" "total" "" $manifest -}}
{{- $ofDomain = float64 (include "seawall.seconds" .) -}}
{{- end -}}
{{- end -}}
{{- $ofTool := $ofDomain -}}
{{- with dig "timeouts" "total" "" $tool -}}
{{- $ofTool = float64 (include "seawall.seconds" .) -}}
{{- end -}}
{{- $longest = maxf $longest $ofTool -}}
{{- range $operation := $tool.operations | default dict -}}
{{- with dig "timeouts" "total" "" $operation -}}
{{- $longest = maxf $longest (float64 (include "seawall.seconds" .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ ceil $longest | int }}
{{- end }}

{{- /* Seconds that calls in flight have after SIGTERM. */ -}}
{{- define "seawall.drain" -}}
{{- with .Values.server.drain -}}
{{ float64 (include "seawall.seconds" .) | ceil | int }}
{{- else -}}
{{ include "seawall.longest" . }}
{{- end }}
{{- end }}

{{- /* Seconds from SIGTERM to SIGKILL: the longest call or the drain, a margin to close the journal, and, standalone, the
pause in which endpoints forget us. */ -}}
{{- define "seawall.leastGrace" -}}
{{- $pause := ternary 5 0 (eq .Values.mode "standalone") -}}
{{ add (max (include "seawall.longest" . | int) (include "seawall.drain" . | int)) 10 $pause }}
{{- end }}

{{- define "seawall.gracePeriod" -}}
{{ default (include "seawall.leastGrace" .) .Values.terminationGracePeriodSeconds }}
{{- end }}

{{- /* Names of operations that need the journal to survive, as `tool.operation`, joined by spaces. */ -}}
{{- define "seawall.undoable" -}}
{{- $manifest := fromYaml (include "seawall.manifest" .) -}}
{{- $found := list -}}
{{- range $name, $tool := $manifest.tools | default dict -}}
{{- range $operationName, $operation := $tool.operations | default dict -}}
{{- if has $operation.tier (list "compensable" "pivot") -}}
{{- $found = append $found (printf "%s.%s" $name $operationName) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ join " " $found }}
{{- end }}

{{- define "seawall.persistenceType" -}}
{{- if ne .Values.persistence.type "auto" -}}
{{ .Values.persistence.type }}
{{- else -}}
{{ ternary "claim" "ephemeral" (eq .Values.mode "standalone") }}
{{- end }}
{{- end }}

{{- define "seawall.control" -}}
{{ default (ternary "127.0.0.1:9090" "unix:/run/seawall/control.sock" (eq .Values.mode "standalone")) .Values.control.listen }}
{{- end }}
