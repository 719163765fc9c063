// Package marks says what an interruption sets on its Node, and how to undo it: the record, the
// cordon, the taints, and the label that takes the Node out of load balancers.
//
// Every function is pure: it makes the patch, and somebody else sends it. What was on the Node
// before stays: each patch notes in the record what it newly sets, and only that is undone.
package marks

import (
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// Patch is a change of a Node.
type Patch struct {
	Type types.PatchType
	Data []byte
	// Record is the Node's record after the patch; nil if the patch removes it.
	Record *interruption.Record
	// Subresources are as of a client's Patch: none, or the status.
	Subresources []string
}

// Operation is one of a JSON patch.
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Taint is what an interruption puts on its Node.
func Taint(r interruption.Record) corev1.Taint {
	return corev1.Taint{Key: interruption.TaintKey, Value: string(r.Kind), Effect: corev1.TaintEffectNoSchedule}
}

// Accept writes the record of a notice. If the record leaves the node waiting, Accept marks nothing. A
// cancellation that is still on the Node was about an earlier interruption, and goes.
func Accept(node *corev1.Node, rec interruption.Record) Patch {
	annotations := map[string]any{}
	if _, set := node.Annotations[interruption.CancelAnnotation]; set {
		annotations[interruption.CancelAnnotation] = nil
	}
	return accept(node, rec, annotations)
}

// Withdraw writes the record without what a notice takes back. A cancellation on the Node stands: it is
// about what is left.
func Withdraw(node *corev1.Node, rec interruption.Record) Patch {
	return accept(node, rec, map[string]any{})
}

func accept(node *corev1.Node, rec interruption.Record, annotations map[string]any) Patch {
	if rec.Phase != interruption.Waiting && !rec.Canceled {
		return set(node, rec, annotations)
	}
	annotations[interruption.Annotation] = rec.String()
	return merge(node, rec, map[string]any{"annotations": annotations}, nil)
}

// Set writes a record together with all that it stands for: cordon and taint; if the instance
// is certain to end, the label that takes it out of load balancers; if it has ended, the taint
// that says so.
func Set(node *corev1.Node, rec interruption.Record) Patch {
	return set(node, rec, map[string]any{})
}

// set also changes these annotations.
func set(node *corev1.Node, rec interruption.Record, annotations map[string]any) Patch {
	rec.Ours = slices.Clone(rec.Ours)
	ours := func(what string) {
		if !slices.Contains(rec.Ours, what) {
			rec.Ours = append(rec.Ours, what)
		}
	}
	spec, metadata := map[string]any{}, map[string]any{}
	if !node.Spec.Unschedulable {
		spec["unschedulable"] = true
		ours(interruption.OursCordon)
	}
	taints, tainted := withTaint(node.Spec.Taints, Taint(rec))
	if tainted {
		ours(interruption.OursTaint)
	}
	if isShutDown(node, rec) {
		if with, changed := withTaint(taints, outOfService); changed {
			taints, tainted = with, true
			ours(interruption.OursOutOfService)
		}
	}
	if tainted {
		spec["taints"] = taints
	}
	if rec.ComesBack() && rec.Boot == "" {
		rec.Boot = node.Status.NodeInfo.BootID
	}
	if _, set := node.Labels[interruption.ExcludeFromLoadBalancers]; !set && rec.Kind.Certain() {
		metadata["labels"] = map[string]string{interruption.ExcludeFromLoadBalancers: interruption.ExcludeFromLoadBalancersValue}
		ours(interruption.OursLoadBalancer)
	}
	annotations[interruption.Annotation] = rec.String()
	metadata["annotations"] = annotations
	return merge(node, rec, metadata, spec)
}

// Undo takes back what the record has set. The record goes, or rest takes its place. If it
// goes, its scheduled events are remembered as past; if somebody cancelled it on the Node,
// everything is, as of now.
func Undo(node *corev1.Node, rec interruption.Record, rest *interruption.Record, now time.Time) Patch {
	spec, metadata := map[string]any{}, map[string]any{}
	if slices.Contains(rec.Ours, interruption.OursCordon) {
		spec["unschedulable"] = nil
	}
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		return t.Key == interruption.TaintKey && slices.Contains(rec.Ours, interruption.OursTaint) ||
			t.MatchTaint(&outOfService) && slices.Contains(rec.Ours, interruption.OursOutOfService)
	})
	if len(taints) != len(node.Spec.Taints) {
		spec["taints"] = taints
	}
	annotations := map[string]any{interruption.Annotation: nil, interruption.CancelAnnotation: nil}
	past := interruption.PastOf(rec)
	if node.Annotations[interruption.CancelAnnotation] == "true" {
		past = interruption.PastOfCanceled(rec, now)
	}
	switch {
	case rest != nil:
		annotations[interruption.Annotation] = rest.String()
	case len(past) > 0:
		annotations[interruption.PastAnnotation] = remembered(node, past)
	}
	metadata["annotations"] = annotations
	// Somebody who has changed the label since then has made it theirs.
	if slices.Contains(rec.Ours, interruption.OursLoadBalancer) &&
		node.Labels[interruption.ExcludeFromLoadBalancers] == interruption.ExcludeFromLoadBalancersValue {
		metadata["labels"] = map[string]any{interruption.ExcludeFromLoadBalancers: nil}
	}
	patch := merge(node, rec, metadata, spec)
	patch.Record = rest
	return patch
}

// Remember adds to the Node's [interruption.PastAnnotation].
func Remember(node *corev1.Node, past interruption.Past) Patch {
	return merge(node, interruption.Record{}, map[string]any{
		"annotations": map[string]any{interruption.PastAnnotation: remembered(node, past)},
	}, nil)
}

func remembered(node *corev1.Node, past interruption.Past) string {
	return interruption.ParsePast(node.Annotations[interruption.PastAnnotation]).And(past).String()
}

// Progress moves the record on. It depends on the record alone: the patch fails if another
// replica has meanwhile merged a notice into the record, while changes to the rest of the Node,
// such as the kubelet's, do not matter. With changes of the status, it is a patch of that: through the
// status, the API server changes annotations too.
func Progress(node *corev1.Node, rec interruption.Record, status ...Operation) Patch {
	const path = "/metadata/annotations/spot-handler~1interruption"
	data, _ := json.Marshal(append([]Operation{ // texts, and conditions
		{"test", path, node.Annotations[interruption.Annotation]},
		{"replace", path, rec.String()},
	}, status...))
	patch := Patch{Type: types.JSONPatchType, Data: data, Record: &rec}
	if len(status) > 0 {
		patch.Subresources = []string{"status"}
	}
	return patch
}

// merge is a JSON merge patch. It replaces the whole list of taints, so it carries the
// resourceVersion that it was made from.
func merge(node *corev1.Node, rec interruption.Record, metadata, spec map[string]any) Patch {
	metadata["resourceVersion"] = node.ResourceVersion
	patch := map[string]any{"metadata": metadata}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	data, _ := json.Marshal(patch) // texts, and taints
	return Patch{Type: types.MergePatchType, Data: data, Record: &rec}
}

// withTaint returns the list with the taint in it, replacing any with the same key and effect,
// and whether that changes the list.
func withTaint(taints []corev1.Taint, taint corev1.Taint) ([]corev1.Taint, bool) {
	i := slices.IndexFunc(taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) })
	if i < 0 {
		return append(slices.Clone(taints), taint), true
	}
	if taints[i].Value == taint.Value {
		return taints, false
	}
	changed := slices.Clone(taints)
	changed[i].Value = taint.Value
	return changed, true
}

// outOfService is the taint that says that a Node's machine is shut down. The control plane
// then deletes the pods for good and detaches their volumes without waiting for the kubelet.
// https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown
var outOfService = corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}

// isShutDown reports whether the taint out-of-service may be set. On a live machine it would
// kill pods and pull their volumes away, so four things have to come together. EC2 has said
// that this very instance, by an id that it never reuses, is terminated, which is final. The
// message was not minutes old while the Node was Ready, nor has the Node become Ready since
// (see [interruption.Judge]). The kubelet has stopped reporting, or has reported its own end,
// so the Node is not Ready. And nobody is deleting the Node already: that ends it in another
// way. A machine that has only stopped is not enough: it comes back.
func isShutDown(node *corev1.Node, rec interruption.Record) bool {
	return rec.Terminated() && !nodes.Ready(node) && node.DeletionTimestamp == nil
}

// ShutDown sets the taint out-of-service as soon as that is allowed, and removes it from a Node
// that is Ready after all. ok is false if there is nothing to do.
func ShutDown(node *corev1.Node, rec interruption.Record) (p Patch, ok bool) {
	_, missing := withTaint(node.Spec.Taints, outOfService)
	switch {
	case isShutDown(node, rec) && missing:
		return Set(node, rec), true
	case nodes.Ready(node) && slices.Contains(rec.Ours, interruption.OursOutOfService):
		kept := rec
		kept.Ours = slices.DeleteFunc(slices.Clone(rec.Ours), func(o string) bool { return o == interruption.OursOutOfService })
		rec.Ours = []string{interruption.OursOutOfService}
		return Undo(node, rec, &kept, time.Time{}), true
	}
	return Patch{}, false
}
