{{/* What the pods of all components have in common: (list $ "imds"). */}}

{{- define "spot-handler.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $component := include "spot-handler.values" . | fromYaml -}}
labels:
  {{- include "spot-handler.labels" . | nindent 2 }}
  {{- with $component.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
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
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
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
securityContext:
  {{- include "spot-handler.containerSecurity" . | nindent 2 }}
{{- with $component.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "spot-handler.volumeMounts" . | trim }}
volumeMounts:
  {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "spot-handler.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
