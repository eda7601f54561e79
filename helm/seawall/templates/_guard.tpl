{{- /* Only the gateway's user leaves the pod. Everybody may use loopback; answers to connections from outside pass, so
that probes and Services still work. */ -}}
{{- define "seawall.guardRules" -}}
table inet seawall_guard
delete table inet seawall_guard
table inet seawall_guard {
  chain output {
    type filter hook output priority filter; policy drop;
    oifname "lo" accept
    meta skuid 65532 accept
    ct state established,related accept
    {{- if .Values.egressGuard.allowDns }}
    meta l4proto { tcp, udp } th dport 53 accept
    {{- end }}
    counter reject with icmpx admin-prohibited
  }
}
{{- end }}
