{{/* What all names begin with. */}}
{{- define "spot-handler.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Where everything is but the placeholder pods. */}}
{{- define "spot-handler.namespace" -}}{{ .Values.namespaceOverride | default .Release.Namespace }}{{- end -}}

{{/* Labels of every object, and those of a component if one is given:
     (list $ "imds"). */}}
{{- define "spot-handler.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- if gt (len .) 1 }}
{{ include "spot-handler.selector" . }}
{{- else }}
app.kubernetes.io/name: spot-handler
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- end }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The same, and more labels: (list (list $ "imds") .Values.imds.podLabels). */}}
{{- define "spot-handler.labelsAnd" -}}
{{- merge (index . 1 | default dict | deepCopy) (include "spot-handler.labels" (index . 0) | fromYaml) | toYaml -}}
{{- end -}}

{{/* The labels that select a component's pods. */}}
{{- define "spot-handler.selector" -}}
app.kubernetes.io/name: spot-handler
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "spot-handler.serviceAccount" -}}
{{- $root := index . 0 -}}
{{- $named := (get (include "spot-handler.values" . | fromYaml) "serviceAccount" | default dict).name -}}
{{- $named | default (printf "%s-%s" (include "spot-handler.fullname" $root) (index . 1)) -}}
{{- end -}}

{{/* The values of a component's pods, as YAML: those of the Deployment are one block, whatever the
     mode calls it. */}}
{{- define "spot-handler.values" -}}
{{- index (index . 0).Values (get (dict "imds" "imds" "audit" "audit") (index . 1) | default "controller") | toYaml -}}
{{- end -}}

{{/* Whether there is a DaemonSet: "true" or nothing. */}}
{{- define "spot-handler.hasIMDS" -}}{{ if ne .Values.mode "queue" }}true{{ end }}{{- end -}}

{{/* The component that is the Deployment: it drains. */}}
{{- define "spot-handler.drainer" -}}{{ if eq .Values.mode "imds" }}drain{{ else }}queue{{ end }}{{- end -}}

{{/* Whether the backend might be asked for replacements: (list $ "karpenter"). */}}
{{- define "spot-handler.provisions" -}}
{{- $asked := (index . 0).Values.flags.provisioner | default "auto" -}}
{{- if or (eq $asked "auto") (eq $asked (index . 1)) }}true{{ end -}}
{{- end -}}
