{{/* What the schema cannot express: whether values fit each other. */}}
{{- define "spot-handler.validate" -}}
{{- include "spot-handler.renamed" . -}}
{{- include "spot-handler.complete" . -}}
{{- include "spot-handler.alone" . -}}
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
{{- if ((.Values.imds.affinity | default dict).nodeAffinity | default dict).requiredDuringSchedulingIgnoredDuringExecution -}}
{{- fail "imds.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution is not a value: spotLabels say which nodes are required, and imds.nodeExpressions or imds.nodeSelector narrow them" -}}
{{- end -}}
{{- range $path, $labels := dict "commonLabels" .Values.commonLabels "imds.podLabels" .Values.imds.podLabels "controller.podLabels" .Values.controller.podLabels -}}
{{- range $key, $_ := $labels -}}
{{- if has $key (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component") -}}
{{- fail (printf "%s has the label %s: the chart sets it itself, and selects pods by it" $path $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $budget := .Values.controller.podDisruptionBudget -}}
{{- if and $budget.enabled (eq (toString $budget.minAvailable) "") (eq (toString $budget.maxUnavailable) "") -}}
{{- fail "controller.podDisruptionBudget has neither minAvailable nor maxUnavailable: set one, or enabled=false" -}}
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
{{- $gone := dict "webhookUrl" "put the URL into a Secret, and name that in webhook.secretName" "webhookTemplate" "put the template into the webhook's Secret, and name its key in webhook.templateKey" "noticeHostNetwork" "name the nodes' networks in flags.noticeNetworks" "placeholderImage" "it is placeholderImage, beside flags" "nodeSelector" "flags.managedNodes says which nodes are handled; controller.nodeSelector and imds.nodeSelector say where the pods run" "rebalanceCapacity" "flags.rebalance=fallback requests the replacement that an interruption notice would get" -}}
{{- range $name, $instead := $gone -}}
{{- if hasKey $.Values.flags $name -}}
{{- fail (printf "flags.%s is no longer a value: %s" $name $instead) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Values of this version whose absence would quietly take away what the version before had built
     in. */}}
{{- define "spot-handler.complete" -}}
{{- range $path, $value := dict "podSecurityContext" .Values.podSecurityContext "securityContext" .Values.securityContext "imds.tolerations" .Values.imds.tolerations "controller.podDisruptionBudget" .Values.controller.podDisruptionBudget -}}
{{- if kindIs "invalid" $value -}}
{{- fail (printf "%s is null: helm upgrade --reuse-values leaves out the new defaults of the chart, use --reset-then-reuse-values; to do without it, empty what is in it" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Another release whose objects would have the same names. Helm would refuse them too, one after
     the other, without saying what to change. Nothing is looked up by helm template, nor with the
     dry run of a client. */}}
{{- define "spot-handler.alone" -}}
{{- $namespace := include "spot-handler.namespace" . -}}
{{- $checks := list
      (list "v1" "ConfigMap" $namespace "spot-handler-offerings" "a namespace holds one installation, whose replicas agree by one Lease on who drains: install this one in another namespace, and give each its own nodes with flags.managedNodes")
      (list "rbac.authorization.k8s.io/v1" "ClusterRole" "" (printf "%s-%s" (include "spot-handler.fullname" .) (include "spot-handler.drainer" .)) "the names of roles and policies are the same in the whole cluster: set fullnameOverride, such as to spot-handler-two") -}}
{{- if .Values.flags.fallbackSelector -}}
{{- $checks = append $checks (list "v1" "Namespace" "" "spot-handler-placeholders" "the namespace and the priority class of placeholder pods exist once in a cluster: set flags.fallbackSelector in one installation only") -}}
{{- end -}}
{{- range $checks -}}
{{- $of := (((lookup (index . 0) (index . 1) (index . 2) (index . 3)).metadata | default dict).annotations | default dict) -}}
{{- $owner := printf "%s/%s" (get $of "meta.helm.sh/release-namespace") (get $of "meta.helm.sh/release-name") -}}
{{- if not (has $owner (list "/" (printf "%s/%s" $.Release.Namespace $.Release.Name))) -}}
{{- fail (printf "%s %s belongs to release %s: %s" (index . 1) (index . 3) $owner (index . 4)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
