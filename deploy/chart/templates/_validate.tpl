{{/* What the schema cannot express: whether values fit each other. */}}
{{- define "spot-handler.validate" -}}
{{- include "spot-handler.renamed" . -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is not set: build the image, push it to a registry of yours and name it here, such as 111122223333.dkr.ecr.eu-west-1.amazonaws.com/spot-handler" -}}
{{- end -}}
{{- $drainer := include "spot-handler.drainer" . -}}
{{- if and (eq $drainer "queue") (not .Values.flags.queueUrl) -}}
{{- fail (printf "flags.queueUrl is not set: mode %s consumes an SQS queue; give its URL, such as https://sqs.eu-west-1.amazonaws.com/111122223333/spot-handler" .Values.mode) -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled -}}
{{- fail "podMonitor.enabled and serviceMonitor.enabled are both true: everything would be counted twice; choose one" -}}
{{- end -}}
{{- if not .Values.spotLabels -}}
{{- fail "spotLabels is empty: the DaemonSet runs where one of them is, the Deployment where none is" -}}
{{- end -}}
{{- if and (eq .Values.flags.provisioner "placeholder") (not .Values.flags.fallbackSelector) -}}
{{- fail "flags.fallbackSelector is not set: the provisioner placeholder needs a label selector of the nodes that take the pods, such as node-lifecycle=on-demand" -}}
{{- end -}}
{{- end -}}

{{/* Values of older versions, and what takes their place. */}}
{{- define "spot-handler.renamed" -}}
{{- range $old := list "drain" "queue" "workloads" -}}
{{- if hasKey $.Values $old -}}
{{- fail (printf "%s is no longer a value: %s" $old (get (dict
      "drain" "the Deployment's values are controller, its flags are in flags"
      "queue" "the Deployment's values are controller, its flags are in flags (flags.queueUrl), its region is AWS_REGION in controller.env"
      "workloads" "set flags.workloadNotices=true") $old)) -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.imds "flags" -}}
{{- fail "imds.flags is no longer a value: its flags are in flags, and flags.watch lists what is polled" -}}
{{- end -}}
{{- $gone := dict "webhookUrl" "put the URL into a Secret, and name that in webhook.secretName" "webhookTemplate" "put the template into the webhook's Secret, and name its key in webhook.templateKey" "noticeHostNetwork" "name the nodes' networks in flags.noticeNetworks" "placeholderImage" "it is placeholderImage, beside flags" "nodeSelector" "flags.managedNodes says which nodes are handled; controller.nodeSelector says where the pods run" "rebalanceCapacity" "flags.rebalance=fallback requests the replacement that an interruption notice would get" -}}
{{- range $name, $instead := $gone -}}
{{- if hasKey $.Values.flags $name -}}
{{- fail (printf "flags.%s is no longer a value: %s" $name $instead) -}}
{{- end -}}
{{- end -}}
{{- end -}}
