{{/* The rights of the program, each with the reason for it. They are tested: what is missing
     here, and what is granted and never used, fails a test. */}}

{{/* Of every process. */}}
{{- define "spot-handler.rules.mark" -}}
# Find nodes by their instance, watch the records on them, read a node again when a patch
# meets another's.
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
# Record, cordon, taint and label.
- apiGroups: [""]
  resources: [nodes]
  verbs: [patch]
# Tell people: Events on nodes and pods. A repeated Event is counted up by a patch.
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/* Of those that drain. */}}
{{- define "spot-handler.rules.drain" -}}
# Which pods are on the interrupted node, and when they have left it.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# Move them, by evictions, which disruption budgets govern.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
# Carry out an eviction that a budget has granted and that was cut short before the pod was
# deleted, as when this process is killed between the two: mark the pod as disrupted, delete
# it. The same past a budget, where --blocked-pods=delete or the annotation of that name asks
# for it.
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [delete]
# Read the annotation spot-handler/blocked-pods of the namespace of a refused pod.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
# Which pods can go only in waves; evict again as soon as a budget that has refused allows it.
# Read only in namespaces of pods that have to leave; also (list) where Karpenter ends a node
# itself, to know the pods that it leaves behind.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch]
# Which volume is behind a pod's claim, and whether its successor can use it at the same time.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
# Wait for the volumes of pods that have left to be detached.
- apiGroups: [storage.k8s.io]
  resources: [volumeattachments]
  verbs: [list, watch]
{{- end -}}

{{/* Of those that drain by surge. */}}
{{- define "spot-handler.rules.surge" -}}
# Have a Deployment's pods replaced before they are evicted: their label pod-template-hash is
# changed, and changed back if the drain is called off.
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
# What a Deployment's maxSurge allows, and whether the successors are available (list, watch;
# get for --dry-run).
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch]
# Whether a pod's ReplicaSet is there still to take it back.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [get]
{{- end -}}

{{/* Of those that drain, for replacements by Karpenter. */}}
{{- define "spot-handler.rules.karpenter" -}}
# Read the interrupted node's pool and the one that is named to replace it (get); where none is
# named, all, to choose one (list).
- apiGroups: [karpenter.sh]
  resources: [nodepools]
  verbs: [get, list]
# Size a replacement for the DaemonSets that will run on it too. Without this, for those of the
# interrupted node.
- apiGroups: [apps]
  resources: [daemonsets]
  verbs: [list]
# Request a replacement (create) and follow it (get, list, watch); take it back if it is never
# launched or used, and hand the drained node back (delete); tell Karpenter by when EC2 acts, and
# when a replacement needs no protection from consolidation any more (patch).
- apiGroups: [karpenter.sh]
  resources: [nodeclaims]
  verbs: [create, get, list, watch, patch, delete]
{{- if .Values.rbac.ownerReferences }}
# The API server asks for this right of whoever names a NodePool as a NodeClaim's owner.
- apiGroups: [karpenter.sh]
  resources: [nodepools/finalizers]
  verbs: [update]
{{- end }}
{{- end -}}

{{/* All of a process that drains. */}}
{{- define "spot-handler.rules.all" -}}
{{ include "spot-handler.rules.mark" . }}
{{ include "spot-handler.rules.drain" . }}
{{- if or (not .Values.flags.drainStrategy) (eq .Values.flags.drainStrategy "surge") }}
{{ include "spot-handler.rules.surge" . }}
{{- end }}
{{- if include "spot-handler.provisions" (list . "karpenter") }}
{{ include "spot-handler.rules.karpenter" . }}
{{- end }}
{{- end -}}

{{/* Of the queue's replicas, in the namespace of the Lease. */}}
{{- define "spot-handler.rules.lease" -}}
# Agree on who drains: the Lease spot-handler. It is not named here, as the check at the start
# asks about leases in general, and as a creation has no name yet.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update]
{{- end -}}
