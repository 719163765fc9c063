{{/* What the schema cannot express: whether values fit each other. */}}
{{- define "spot-handler.validate" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is not set: build the image, push it to a registry of yours and name it here, such as 111122223333.dkr.ecr.eu-west-1.amazonaws.com/spot-handler" -}}
{{- end -}}
{{- $drainer := include "spot-handler.drainer" . -}}
{{- $deployment := index .Values $drainer -}}
{{- if and (eq $drainer "queue") (not .Values.queue.flags.queueUrl) -}}
{{- fail (printf "queue.flags.queueUrl is not set: mode %s consumes an SQS queue; give its URL, such as https://sqs.eu-west-1.amazonaws.com/111122223333/spot-handler" .Values.mode) -}}
{{- end -}}
{{- if eq (toString .Values.imds.flags.drain) "true" -}}
{{- fail "imds.flags.drain is true: the DaemonSet has the rights to mark nodes and no others, and the Deployment drains them; leave it empty" -}}
{{- end -}}
{{- if and (eq (toString $deployment.flags.leaderElect) "false") (gt (int $deployment.replicas) 1) -}}
{{- fail (printf "%s.flags.leaderElect is false with %d replicas: each would drain every node; set %s.replicas to 1" $drainer (int $deployment.replicas) $drainer) -}}
{{- end -}}
{{- if .Values.webhook.secretName -}}
{{- range $flag, $key := dict "webhookUrlFile" .Values.webhook.urlKey "webhookHeadersFile" .Values.webhook.headersKey "webhookTemplateFile" .Values.webhook.templateKey -}}
{{- if and $key (index $.Values.flags $flag) -}}
{{- fail (printf "flags.%s and the key %s of webhook.secretName are both set: keep one" $flag $key) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.webhook.urlKey .Values.flags.webhookUrl -}}
{{- fail "flags.webhookUrl and webhook.urlKey are both set: the URL is in the Secret, leave flags.webhookUrl empty" -}}
{{- end -}}
{{- if and .Values.webhook.templateKey .Values.flags.webhookTemplate -}}
{{- fail "flags.webhookTemplate and webhook.templateKey are both set: keep one" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled -}}
{{- fail "podMonitor.enabled and serviceMonitor.enabled are both true: everything would be counted twice; choose one" -}}
{{- end -}}
{{- if not .Values.spotLabels -}}
{{- fail "spotLabels is empty: the DaemonSet runs where one of them is, the Deployment where none is" -}}
{{- end -}}
{{- if and (include "spot-handler.hasIMDS" .) .Values.imds.flags.nodeName -}}
{{- fail "imds.flags.nodeName is set: every pod of the DaemonSet would take itself for the same node; leave it empty" -}}
{{- end -}}
{{- if and (eq .Values.flags.provisioner "placeholder") (not .Values.flags.fallbackSelector) -}}
{{- fail "flags.fallbackSelector is not set: the provisioner placeholder needs a label selector of the nodes that take the pods, such as node-lifecycle=on-demand" -}}
{{- end -}}
{{- end -}}
