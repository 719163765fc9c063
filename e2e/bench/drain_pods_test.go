package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"spot-handler/e2e/controlplane"
)

// crowd is a set of nodes full of pods that nothing makes anew, so that what is
// measured is their departure alone. kwok plays the kubelets: pods that are evicted
// end, as they do in real life, and whoever drains has that to watch.
type crowd struct {
	nodes []*corev1.Node
	pods  []corev1.Pod
}

// crowdAtOnce is how many pods are made at the same moment.
const crowdAtOnce = 64

// newCrowd returns when all pods are ready.
func newCrowd(b *testing.B, ctx context.Context, cluster *controlplane.Cluster, client kubernetes.Interface, prefix string, nodes, perNode int) crowd {
	b.Helper()
	made, err := cluster.CreateBareNodes(ctx, controlplane.BareNodes{
		Count: nodes, Prefix: prefix, Labels: map[string]string{"bench": prefix}, CPUs: 32,
	})
	must(b, err)
	at := time.Duration(0)
	behaviour := controlplane.Behaviour{ReadyAfter: &at, StopAfter: &at}.Annotations()
	var g errgroup.Group
	g.SetLimit(crowdAtOnce)
	for i := range nodes * perNode {
		g.Go(func() error {
			_, err := client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprintf("%s-%04d", prefix, i), Labels: map[string]string{"bench": prefix}, Annotations: behaviour,
				},
				Spec: corev1.PodSpec{
					NodeName:   made[i%nodes].Name,
					Containers: []corev1.Container{{Name: "app", Image: "fake"}},
				},
			}, metav1.CreateOptions{})
			return err
		})
	}
	must(b, g.Wait())
	_, err = cluster.WaitPods(ctx, "default", "bench="+prefix, func(pods []*corev1.Pod) bool {
		ready := 0
		for _, p := range pods {
			if controlplane.Ready(p) {
				ready++
			}
		}
		return ready == nodes*perNode
	})
	must(b, err)
	list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "bench=" + prefix, ResourceVersion: "0"})
	must(b, err)
	return crowd{made, list.Items}
}

// evictionsAtOnce is how many evictions the daemon has under way at once: Workers in
// package drain.
const evictionsAtOnce = 32

// rawEvict sends for every pod the eviction that the daemon sends, as many at once. It
// leaves out all else: no plan, no watch, no record. It returns when the last is answered.
func rawEvict(ctx context.Context, client kubernetes.Interface, pods []corev1.Pod) error {
	var g errgroup.Group
	g.SetLimit(evictionsAtOnce)
	for i := range pods {
		p := &pods[i]
		g.Go(func() error {
			return client.CoreV1().Pods(p.Namespace).EvictV1(ctx, &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
				DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))},
			})
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("evict in a raw loop: %w", err)
	}
	return nil
}
