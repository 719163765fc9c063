package handler

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// taintOf is the taint that an interruption puts on its Node.
func taintOf(r interruption.Record) corev1.Taint {
	return corev1.Taint{Key: interruption.TaintKey, Value: string(r.Kind), Effect: corev1.TaintEffectNoSchedule}
}

// markPatch is the JSON merge patch that writes a record on a Node together with all
// that it stands for: cordon, taint and, where the instance is sure to end, the label
// that takes it out of load balancers; where it has ended, the taint that says so. What it sets that was not set before is noted
// in the record as ours. The patch replaces the whole list of taints, so it carries
// the resourceVersion that it was made from.
func markPatch(node *corev1.Node, rec *interruption.Record) ([]byte, error) {
	ours := func(what string) {
		if !slices.Contains(rec.Ours, what) {
			rec.Ours = append(slices.Clone(rec.Ours), what)
		}
	}
	spec := map[string]any{}
	if !node.Spec.Unschedulable {
		spec["unschedulable"] = true
		ours(interruption.OursCordon)
	}
	if taints, changed := withTaint(node.Spec.Taints, taintOf(*rec)); changed {
		spec["taints"] = taints
		ours(interruption.OursTaint)
	}
	if isShutDown(node, *rec) {
		taints, ok := spec["taints"].([]corev1.Taint)
		if !ok {
			taints = node.Spec.Taints
		}
		if taints, changed := withTaint(taints, outOfService); changed {
			spec["taints"] = taints
			ours(interruption.OursOutOfService)
		}
	}
	if rec.ComesBack() && rec.Boot == "" {
		rec.Boot = node.Status.NodeInfo.BootID
	}
	metadata := map[string]any{"resourceVersion": node.ResourceVersion}
	if _, set := node.Labels[interruption.ExcludeFromLoadBalancers]; !set && rec.Kind.Certain() {
		metadata["labels"] = map[string]string{interruption.ExcludeFromLoadBalancers: interruption.ExcludeFromLoadBalancersValue}
		ours(interruption.OursLoadBalancer)
	}
	annotations := map[string]any{interruption.Annotation: rec.String()}
	if _, set := node.Annotations[interruption.CancelAnnotation]; set {
		annotations[interruption.CancelAnnotation] = nil // it was about an earlier interruption
	}
	metadata["annotations"] = annotations
	patch := map[string]any{"metadata": metadata}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	return json.Marshal(patch)
}

// restorePatch is the JSON merge patch that undoes an interruption: of what the record stood
// for that which was not there before. The record goes, or text, that of another one, takes
// its place. Of one that goes the scheduled events are remembered as past, and everything if it
// was somebody on the Node who has called it off.
func restorePatch(node *corev1.Node, rec interruption.Record, text any) ([]byte, error) {
	spec := map[string]any{}
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
	annotations := map[string]any{interruption.Annotation: text, interruption.CancelAnnotation: nil}
	past := interruption.PastOf(rec)
	if node.Annotations[interruption.CancelAnnotation] == "true" {
		past = interruption.CalledOff(rec)
	}
	if text == nil && len(past) > 0 {
		annotations[interruption.PastAnnotation] = interruption.ParsePast(node.Annotations[interruption.PastAnnotation]).And(past).String()
	}
	metadata := map[string]any{"resourceVersion": node.ResourceVersion, "annotations": annotations}
	// Somebody who has changed the label since has made it theirs.
	if slices.Contains(rec.Ours, interruption.OursLoadBalancer) &&
		node.Labels[interruption.ExcludeFromLoadBalancers] == interruption.ExcludeFromLoadBalancersValue {
		metadata["labels"] = map[string]any{interruption.ExcludeFromLoadBalancers: nil}
	}
	patch := map[string]any{"metadata": metadata}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	return json.Marshal(patch)
}

// withTaint returns the list with the taint in it, in place of one of the same key
// and effect, and whether that is a change.
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

// progressPatch is the JSON patch that moves a Node's record on. It rests on the
// record alone: if another replica has merged a notice into it meanwhile the patch
// fails, while changes to the rest of the Node, such as the kubelet's, do not matter.
func progressPatch(node *corev1.Node, rec interruption.Record) ([]byte, error) {
	const path = "/metadata/annotations/spot-handler~1interruption"
	return json.Marshal([]map[string]any{
		{"op": "test", "path": path, "value": node.Annotations[interruption.Annotation]},
		{"op": "replace", "path": path, "value": rec.String()},
	})
}
