package marks

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// outOfService is the taint that says that a Node's machine is shut down. The control plane
// then deletes the pods for good and detaches their volumes without waiting for the kubelet.
// https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown
var outOfService = corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}

// IsShutDown reports whether the taint out-of-service may be set. On a live machine it would
// kill pods and pull their volumes away, so four things have to come together. EC2 has said
// that this very instance, by an id that it never reuses, is terminated, which is final. The
// message was not minutes old while the Node was Ready, nor has the Node become Ready since
// (see [interruption.Judge]). The kubelet has stopped reporting, or has reported its own end,
// so the Node is not Ready. And nobody is deleting the Node already: whoever deletes it ends it
// in their own way. A machine that has only stopped is not enough: it comes back.
func IsShutDown(node *corev1.Node, rec interruption.Record) bool {
	return rec.Terminated() && !nodes.Ready(node) && node.DeletionTimestamp == nil
}

// ShutDown sets the taint out-of-service as soon as that is allowed, and removes it from a Node
// that is Ready after all. ok is false if there is nothing to do.
func ShutDown(node *corev1.Node, rec interruption.Record) (p Patch, ok bool, err error) {
	_, missing := withTaint(node.Spec.Taints, outOfService)
	switch {
	case IsShutDown(node, rec) && missing:
		p, err = Set(node, rec)
		return p, true, err
	case nodes.Ready(node) && slices.Contains(rec.Ours, interruption.OursOutOfService):
		kept := rec
		kept.Ours = slices.DeleteFunc(slices.Clone(rec.Ours), func(o string) bool { return o == interruption.OursOutOfService })
		rec.Ours = []string{interruption.OursOutOfService}
		p, err = Undo(node, rec, &kept, time.Time{})
		return p, true, err
	}
	return Patch{}, false, nil
}
