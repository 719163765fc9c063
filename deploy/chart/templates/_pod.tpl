{{/* What the pods of all components have in common: (list $ "imds"). */}}

{{- define "spot-handler.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $component := include "spot-handler.values" . | fromYaml -}}
labels:
  {{- include "spot-handler.labelsAnd" (list . ($component.podLabels | default dict)) | nindent 2 }}
annotations:
  kubectl.kubernetes.io/default-container: spot-handler
  {{- with $component.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "spot-handler.podSpec" -}}
{{- $root := index . 0 -}}
{{- $component := include "spot-handler.values" . | fromYaml -}}
serviceAccountName: {{ include "spot-handler.serviceAccount" . }}
automountServiceAccountToken: true
{{- with $component.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with concat ($root.Values.image.pullSecrets | default list) ($root.Values.imagePullSecrets | default list) (($root.Values.global | default dict).imagePullSecrets | default list) }}
imagePullSecrets:
  {{- range . }}
  - name: {{ if kindIs "string" . }}{{ . }}{{ else }}{{ .name }}{{ end }}
  {{- end }}
{{- end }}
{{- with $root.Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "spot-handler.volumes" . | trim }}
volumes:
  {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "spot-handler.image" -}}
{{- $image := .Values.image -}}
image: {{ if $image.digest }}{{ printf "%s@%s" $image.repository $image.digest | quote }}{{ else }}{{ printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) | quote }}{{ end }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end -}}

{{/* The rest of the container. */}}
{{- define "spot-handler.container" -}}
{{- $component := include "spot-handler.values" . | fromYaml -}}
livenessProbe:
  httpGet: { path: /healthz, port: http }
  initialDelaySeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: http }
resources:
  {{- toYaml $component.resources | nindent 2 }}
{{- with (index . 0).Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "spot-handler.volumeMounts" . | trim }}
volumeMounts:
  {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The labels that a pod's node must have: the image is for Linux, whatever else is asked for. */}}
{{- define "spot-handler.nodeSelector" -}}
{{- merge (dict "kubernetes.io/os" "linux") ((include "spot-handler.values" . | fromYaml).nodeSelector | default dict) | toYaml -}}
{{- end -}}
