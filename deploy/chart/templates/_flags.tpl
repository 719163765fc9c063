{{/* The flags of maps of values, as a YAML list. Each value becomes the flag of its name: the
     value drainStrategy is the flag --drain-strategy. Empty ones are left to the program. */}}
{{- define "spot-handler.flags" -}}
{{- $args := list -}}
{{- range . -}}
  {{- range $name, $value := . -}}
    {{- $flag := kebabcase $name -}}
    {{- if kindIs "map" $value -}}
      {{- range $key, $one := $value -}}
        {{- $args = append $args (printf "--%s=%s=%s" $flag $key (include "spot-handler.text" $one)) -}}
      {{- end -}}
    {{- else if kindIs "slice" $value -}}
      {{- range $value -}}
        {{- $args = append $args (printf "--%s=%s" $flag (include "spot-handler.text" .)) -}}
      {{- end -}}
    {{- else if not (or (kindIs "invalid" $value) (eq (toString $value) "")) -}}
      {{- $args = append $args (printf "--%s=%s" $flag (include "spot-handler.text" $value)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $args }}
- {{ . | replace "$(" "$$(" | quote }}{{/* Kubernetes would replace $(NAME) with a variable */}}
{{- end -}}
{{- end -}}

{{/* Numbers in a values file are floating point: 5000000 would become 5e+06. */}}
{{- define "spot-handler.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{/* Flags that one mode alone has. */}}
{{- define "spot-handler.flagsOf" -}}
{{- $flags := (index . 0).Values.flags -}}
{{- if ne (index . 1) "imds" }}{{ $flags = omit $flags "watch" }}{{ end -}}
{{- if eq (index . 1) "imds" }}{{ $flags = omit $flags "webhookProxy" }}{{ end -}}
{{- if ne (index . 1) "queue" }}{{ $flags = omit $flags "queueUrl" "heartbeatUntil" }}{{ end -}}
{{- include "spot-handler.flags" (list $flags) -}}
{{- end -}}
