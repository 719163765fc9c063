package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spot-handler/e2e/controlplane"
)

// crowd is a set of nodes full of pods that nothing makes again, so what is
// measured is their departure alone. kwok plays the kubelets: pods that are evicted
// end, as they do in real life, and whoever drains has that to watch.
type crowd struct {
	nodes []*corev1.Node
	pods  []*corev1.Pod
}

// newCrowd returns when all pods are ready.
func newCrowd(b *testing.B, ctx context.Context, cluster *controlplane.Cluster, name string, nodes, perNode, budgets int) crowd {
	b.Helper()
	made, err := cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: nodes, Prefix: name, Labels: map[string]string{"bench": name}})
	must(b, err)
	at := time.Duration(0)
	pods, err := cluster.CreateCrowd(ctx, controlplane.Crowd{
		Name: name, PerNode: perNode, Budgets: budgets, Behaviour: controlplane.Behaviour{ReadyAfter: &at, StopAfter: &at},
	}, made)
	must(b, err)
	return crowd{made, pods}
}

// evictor is the raw loop's client for evictions. Like the daemon's it does not wait by
// itself when the API server asks for that.
func evictor(cluster *controlplane.Cluster) (rest.Interface, error) {
	client, err := rawClient(cluster)
	if err != nil {
		return nil, err
	}
	return client.(*kubernetes.Clientset).CoreV1().RESTClient(), nil
}

// ofOneNamespace is how many evictions the daemon has under way at once for one namespace, if nobody else needs any.
const ofOneNamespace = 32

// rawEvict sends for every pod the eviction that the daemon sends, as many at once. It
// leaves out all else: no plan, no watch, no record. What failed by a conflict is sent
// again at once. It returns when the last is granted.
func rawEvict(ctx context.Context, client rest.Interface, pods []*corev1.Pod) error {
	var g errgroup.Group
	g.SetLimit(ofOneNamespace)
	for _, p := range pods {
		g.Go(func() error {
			eviction := &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
				DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))},
			}
			for {
				err := client.Post().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("eviction").
					MaxRetries(0).Body(eviction).Do(ctx).Error()
				if !apierrors.IsTimeout(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsConflict(err) {
					return err
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("evict in a raw loop: %w", err)
	}
	return nil
}
