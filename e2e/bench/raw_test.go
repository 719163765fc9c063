package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// rawAgent marks the raw loops in the audit log.
const rawAgent = "raw-loop/1"

// rawClient is a client as the daemon has one: protobuf, and no limit of its own.
func rawClient(cluster *controlplane.Cluster) (kubernetes.Interface, error) {
	config := cluster.RESTConfig()
	config.UserAgent = rawAgent
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return kubernetes.NewForConfig(config)
}

// sameConcurrency is how many patches the raw loop has under way at once: as many as
// the daemon's acceptsAtOnce, in package handler. The bound alone makes a difference:
// the control plane answers every cordon with a taint of its own, and the fewer patches
// are under way, the more of those come between them.
const sameConcurrency = 64

// rawCordon sends for every node the patch that the daemon sends, atOnce at the same
// moment. What it leaves out is the daemon: no queue, no index, nothing that follows
// the patch.
func rawCordon(ctx context.Context, client kubernetes.Interface, nodes []*corev1.Node, atOnce int, source interruption.Source) error {
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, node := range nodes {
		g.Go(func() error {
			patch, err := rawPatch(node, source)
			if err != nil {
				return fmt.Errorf("make patch: %w", err)
			}
			_, err = client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("cordon in a raw loop: %w", err)
	}
	return nil
}

// rawPatch has the content of the daemon's patch; that it has is checked by
// sameMarks, on the nodes.
func rawPatch(node *corev1.Node, source interruption.Source) ([]byte, error) {
	now := time.Now()
	rec := interruption.NewRecord(interruption.Notice{
		Kind: interruption.SpotInterruption, EventID: eventID(node.Name), InstanceID: controlplane.InstanceID(node.Name),
		Source: source, Action: "terminate", Noticed: now.Truncate(time.Second), Received: now,
		Deadline: now.Truncate(time.Second).Add(2 * time.Minute),
	})
	rec.Ours = []string{interruption.OursCordon, interruption.OursTaint, interruption.OursLoadBalancer}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{
			"resourceVersion": node.ResourceVersion,
			"labels":          map[string]string{interruption.ExcludeFromLoadBalancers: interruption.ExcludeFromLoadBalancersValue},
			"annotations":     map[string]string{interruption.Annotation: rec.String()},
		},
		"spec": map[string]any{
			"unschedulable": true,
			"taints": []corev1.Taint{{
				Key: interruption.TaintKey, Value: string(interruption.SpotInterruption), Effect: corev1.TaintEffectNoSchedule,
			}},
		},
	})
}

// sameMarks checks that the daemon and the raw loop have written the same: a ratio of
// unequal patches would be none.
func sameMarks(daemon, raw map[string]sight) error {
	var want string
	for _, s := range raw {
		want = marks(s.node)
		break
	}
	for name, s := range daemon {
		if got := marks(s.node); got != want {
			return fmt.Errorf("node %s was marked with %s, by the raw loop with %s", name, got, want)
		}
	}
	return nil
}

// marks is what a patch has written, without the values that differ from node to node.
func marks(node *corev1.Node) string {
	var rec map[string]any
	_ = json.Unmarshal([]byte(node.Annotations[interruption.Annotation]), &rec) // nil where there is none
	for _, field := range []string{"event", "instance", "noticed", "received", "deadline"} {
		if rec[field] != nil {
			rec[field] = "*"
		}
	}
	delete(rec, "begun")         // what is recorded seconds late says when, too
	text, _ := json.Marshal(rec) // strings and lists of them only
	return fmt.Sprintf("record %s, label %q, taints %v, unschedulable %t", text,
		node.Labels[interruption.ExcludeFromLoadBalancers], taintsOf(node), node.Spec.Unschedulable)
}

// taintsOf leaves the control plane's own taint out: the node lifecycle controller
// answers every cordon with one, before or after it is seen here.
func taintsOf(node *corev1.Node) (taints []string) {
	for _, t := range node.Spec.Taints {
		if t.Key != corev1.TaintNodeUnschedulable {
			taints = append(taints, t.ToString())
		}
	}
	return taints
}

// eventID is as long as those of EventBridge.
func eventID(node string) string {
	return fmt.Sprintf("00000000-0000-4000-8000-%012.12s", controlplane.InstanceID(node)[2:])
}
