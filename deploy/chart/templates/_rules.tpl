{{/* The permissions of the program, each with its reason. A test fails if one is missing here, or
     granted and never used. */}}

{{/* Every process has these. The DaemonSet has no others. */}}
{{- define "spot-handler.rules.mark" -}}
# Find nodes by their instance, watch the records on them, and read a node again when a patch
# conflicts with somebody else's.
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
# Record, cordon, taint and label.
- apiGroups: [""]
  resources: [nodes]
  verbs: [patch]
{{- end -}}

{{/* Whether pods are drained by surge, which is the program's default: "true" or nothing. */}}
{{- define "spot-handler.surges" -}}
{{ if or (not .Values.flags.drainStrategy) (eq .Values.flags.drainStrategy "surge") }}true{{ end }}
{{- end -}}

{{/* A DaemonSet that only says what would be done. */}}
{{- define "spot-handler.rules.dryRun" -}}
# Read the pods of the node and what holds them: budgets, volumes, and what their namespaces ask
# for.
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
{{- if include "spot-handler.surges" . }}
# Read what decides whether a pod can be surged: its Deployment, who would adopt it, and quotas.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get]
- apiGroups: [apps]
  resources: [replicasets, daemonsets]
  verbs: [list]
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list]
{{- end }}
{{- if include "spot-handler.provisions" (list . "karpenter") }}
# Read the pools, and what the replacement would have to hold.
- apiGroups: [karpenter.sh]
  resources: [nodepools, nodeclaims]
  verbs: [get, list]
- apiGroups: [apps]
  resources: [daemonsets]
  verbs: [list]
{{- end }}
{{- end -}}

{{/* Processes that drain. */}}
{{- define "spot-handler.rules.drain" -}}
# Events on nodes and pods. A patch increments the count of a repeated Event.
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
# Show the interruption as conditions of its Node.
- apiGroups: [""]
  resources: [nodes/status]
  verbs: [patch]
# Know which pods are on the interrupted node, and when they have left it; and, with notices on,
# the other pods of their gangs.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# Move them by eviction, so PDBs apply.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
# Finish an eviction that a budget has granted and that was cut short before the pod was
# deleted, as when this process is killed between the two: mark the pod as disrupted, and
# delete it. Do the same past a budget, if --blocked-pods=delete or the annotation of that
# name asks for it.
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [delete]
# Read what the namespace of a pod asks for it: spot-handler/when and spot-handler/blocked-pods.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
# Know which pods can go only in waves, and evict again as soon as a budget that refused allows
# it. They are read only in namespaces of pods that have to leave; also (list) when Karpenter
# ends a node itself, to know the pods that it leaves behind.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch]
# Find the volume of a pod's claim, and whether the replacement pod can use it at the same time.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
# Wait for the volumes of pods that have left to be detached.
- apiGroups: [storage.k8s.io]
  resources: [volumeattachments]
  verbs: [list, watch]
{{- end -}}

{{/* Processes that drain by surge. */}}
{{- define "spot-handler.rules.surge" -}}
# Have a Deployment's pods replaced before they are evicted: change their label
# pod-template-hash, and change it back if the interruption is cancelled.
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
# Read what a Deployment's maxSurge allows, and whether replacement pods are available (list,
# watch), and whether it is still there when a pod is to go back (get; also for --dry-run).
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch]
# Know whether a pod's ReplicaSet still exists to take it back (get), and whether another one
# would adopt the pod while it has no owner (list).
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [get, list]
# Know whether a DaemonSet would.
- apiGroups: [apps]
  resources: [daemonsets]
  verbs: [list]
# Check whether there is room for a replacement pod.
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list]
{{- end -}}

{{/* Processes that notify pods. */}}
{{- define "spot-handler.rules.notices" -}}
# Write on pods that ask for it when their node ends, and when they leave at the latest.
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
# Know which addresses are those of Services, to which no notice goes.
- apiGroups: [networking.k8s.io]
  resources: [servicecidrs]
  verbs: [list]
{{- end -}}

{{/* Processes that drain, for replacements by Karpenter. */}}
{{- define "spot-handler.rules.karpenter" -}}
# Read the interrupted node's pool, and those that can replace it (list). Earlier versions, which
# run on until they are replaced, read them one by one (get).
- apiGroups: [karpenter.sh]
  resources: [nodepools]
  verbs: [get, list]
# Size a replacement for the DaemonSets that will run on it, too. Without this right, those of
# the interrupted node count.
- apiGroups: [apps]
  resources: [daemonsets]
  verbs: [list]
# Request a replacement (create) and follow it (get, list, watch); delete it if it is never
# launched or used, and delete that of the drained node (delete); mark when EC2 acts, and
# when a replacement no longer needs protection from consolidation (patch).
- apiGroups: [karpenter.sh]
  resources: [nodeclaims]
  verbs: [create, get, list, watch, patch, delete]
{{- if .Values.rbac.ownerReferences }}
# The API server requires this right to name a NodePool as a NodeClaim's owner.
- apiGroups: [karpenter.sh]
  resources: [nodepools/finalizers]
  verbs: [update]
{{- end }}
{{- end -}}

{{/* Everything that a process that drains needs. */}}
{{- define "spot-handler.rules.all" -}}
{{ include "spot-handler.rules.mark" . }}
{{ include "spot-handler.rules.drain" . }}
{{- if include "spot-handler.surges" . }}
{{ include "spot-handler.rules.surge" . }}
{{- end }}
{{- if include "spot-handler.notices" . }}
{{ include "spot-handler.rules.notices" . }}
{{- end }}
{{- if include "spot-handler.provisions" (list . "karpenter") }}
{{ include "spot-handler.rules.karpenter" . }}
{{- end }}
{{- end -}}

{{/* The Deployment's replicas, in their own namespace. */}}
{{- define "spot-handler.rules.lease" -}}
# Agree on who drains: the Lease spot-handler. It is not named here, because the check at the
# start asks about leases in general, and because a creation has no name yet.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update]
# Remember which offerings EC2 takes, in the ConfigMap of the chart. Without this permission, a
# restart forgets them.
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [spot-handler-offerings]
  verbs: [get, patch]
{{- end -}}

{{/* The CronJob: what audit reads, and nothing that it could change. */}}
{{- define "spot-handler.rules.audit" -}}
- apiGroups: [""]
  resources: [nodes, pods, persistentvolumeclaims, persistentvolumes, resourcequotas]
  verbs: [list]
- apiGroups: [apps]
  resources: [deployments, statefulsets, replicasets, daemonsets]
  verbs: [list]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list]
- apiGroups: [""]
  resources: [services]
  verbs: [list]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [spot-handler-offerings]
  verbs: [get]
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [list]
- apiGroups: [karpenter.sh]
  resources: [nodepools, nodeclaims]
  verbs: [list]
- apiGroups: [flowcontrol.apiserver.k8s.io]
  resources: [flowschemas]
  verbs: [list]
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingadmissionpolicies, validatingadmissionpolicybindings]
  verbs: [list]
# Where the program is installed: labels prove nothing.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterrolebindings]
  verbs: [list]
# Ask which permissions the program's accounts have. This changes nothing.
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end -}}
