{{- /* Written by `make docs` from policies/ and core/manifest.py; changes made here are lost. */ -}}
{{- define "seawall.shippedDomains" -}}
external: 60
internal: 10
local: 2
{{- end }}
{{- define "seawall.defaultTotal" -}}120{{- end }}
