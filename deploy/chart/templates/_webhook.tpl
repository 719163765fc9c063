{{/* The flags that name the files of the webhook's Secret, as a YAML list. */}}
{{- define "spot-handler.webhookFlags" -}}
{{- if .Values.webhook.secretName -}}
{{- range $flag, $key := dict "webhook-url-file" .Values.webhook.urlKey "webhook-headers-file" .Values.webhook.headersKey "webhook-template-file" .Values.webhook.templateKey -}}
{{- if $key }}
- --{{ $flag }}=/etc/spot-handler/webhook/{{ $key }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The volumes of a component, and where they are mounted: its own and, in the Deployment, the
     webhook's Secret. */}}
{{- define "spot-handler.volumes" -}}
{{- $root := index . 0 -}}
{{- if and $root.Values.webhook.secretName (has (index . 1) (list "drain" "queue")) }}
- name: webhook
  secret:
    secretName: {{ $root.Values.webhook.secretName }}
{{- end }}
{{- if and (eq (index . 1) "audit") $root.Values.audit.baseline }}
- name: baseline
  configMap:
    name: {{ include "spot-handler.fullname" $root }}-audit
{{- end }}
{{- with (include "spot-handler.values" . | fromYaml).volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "spot-handler.volumeMounts" -}}
{{- $root := index . 0 -}}
{{- if and $root.Values.webhook.secretName (has (index . 1) (list "drain" "queue")) }}
- name: webhook
  mountPath: /etc/spot-handler/webhook
  readOnly: true
{{- end }}
{{- if and (eq (index . 1) "audit") $root.Values.audit.baseline }}
- name: baseline
  mountPath: /etc/spot-handler/audit
  readOnly: true
{{- end }}
{{- with (include "spot-handler.values" . | fromYaml).volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Whether pods are notified of the end of their nodes; empty if not. */}}
{{- define "spot-handler.notices" -}}
{{- if eq (toString .Values.flags.workloadNotices) "true" }}true{{ end -}}
{{- end -}}

{{/* The port of the webhook's proxy. 443 is always open. */}}
{{- define "spot-handler.webhookPort" -}}
{{- with .Values.flags.webhookProxy -}}
{{- $url := urlParse . -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- $port | default (get (dict "https" "443" "socks5" "1080" "socks5h" "1080") $url.scheme) | default "80" -}}
{{- end -}}
{{- end -}}
