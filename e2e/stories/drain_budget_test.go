package stories

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
)

// Three draining nodes share one budget that lets one pod go at a time. They finish in
// the order of their deadlines, although their notices came the other way round; and
// whenever a replacement pod that becomes ready frees the PDB, the next pod goes within
// 200 ms.
func TestNodesThatShareABudgetEndInOrderOfTheirDeadlines(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	const perNode = 4
	nodes := s.bare("node", 3, 2) // 2 CPUs: room for four pods each
	pods := s.service("web", perNode*len(nodes), func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.MaxSurge, d.BudgetMinAvailable = never, budget(perNode*len(nodes)) // nothing goes yet
	})
	home := map[string]int{}
	for _, p := range pods {
		home[string(p.UID)] = slices.IndexFunc(nodes, func(n *corev1.Node) bool { return n.Name == p.Spec.NodeName })
	}
	s.bare("spare", 1, 8)
	d, queue := s.drill()

	for i := len(nodes) - 1; i >= 0; i-- {
		interrupt(queue, nodes[i].Name, time.Duration(90+10*i)*time.Second)
	}
	s.eventually("all pods blocked", func() bool { return s.metric(d, "spot_handler_blocked_pods") == float64(len(pods)) })

	ready, free := s.watchFreed("web", uids(pods))
	patch := fmt.Sprintf(`{"spec":{"minAvailable":%d}}`, len(pods)-1)
	_, err := s.cluster.Client.PolicyV1().PodDisruptionBudgets("default").Patch(s.ctx, "web", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err)
	want := map[string]result{}
	for _, n := range nodes {
		want[n.Name] = result{graceful: perNode}
	}
	s.wantResults(d, want)
	s.wantEachOnce(uids(pods))

	var order []int
	var last [3]time.Time
	evicted := s.evicted()
	for _, r := range evicted {
		i := home[r.RequestObject.DeleteOptions.Preconditions.UID]
		order = append(order, i)
		last[i] = r.RequestReceivedTimestamp
	}
	if !last[0].Before(last[1]) || !last[1].Before(last[2]) {
		t.Errorf("the nodes' pods went in the order %v, want that of the deadlines", order)
	}
	// The first eviction is set free by the patch, each other one by a replacement pod.
	fromFree, fromReady := delays(free.all(), evicted), delays(ready.all(), evicted[1:])
	t.Logf("from the budget's allowing one to the next eviction: %v", fromFree)
	t.Logf("from a replacement pod's becoming ready to the next eviction: %v", fromReady)
	// On a busy machine one or the other takes longer, and timers alone would be as fast by
	// chance now and then.
	const within = 200 * time.Millisecond
	if median := fromReady[len(fromReady)/2]; median > within {
		t.Errorf("a budget freed by a pod's becoming ready was used after %s in half of all cases, want within %s", median, within)
	}
}

// watchFreed notes when pods of the service become ready that are none of the old, and when its budget allows
// an eviction after it allowed none.
func (s *story) watchFreed(service string, old map[types.UID]string) (ready, free *sightings) {
	s.Helper()
	ready, free = &sightings{at: map[string]time.Time{}}, &sightings{at: map[string]time.Time{}}
	s.background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // more than the default of WaitPods
		defer cancel()
		_, _ = s.cluster.WaitPods(ctx, "default", controlplane.Selector(service), func(pods []*corev1.Pod) bool {
			for _, p := range pods {
				if _, was := old[p.UID]; !was && controlplane.Ready(p) {
					ready.see(string(p.UID))
				}
			}
			return false
		})
	})
	events, err := s.cluster.Client.PolicyV1().PodDisruptionBudgets("default").Watch(s.ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + service,
	})
	s.must(err)
	s.background(func(ctx context.Context) {
		defer events.Stop()
		allowed := int32(0)
		for {
			select {
			case <-ctx.Done():
				return
			case event, ok := <-events.ResultChan():
				if !ok {
					return
				}
				if b, isBudget := event.Object.(*policyv1.PodDisruptionBudget); isBudget {
					if allowed == 0 && b.Status.DisruptionsAllowed > 0 {
						free.see(b.ResourceVersion)
					}
					allowed = b.Status.DisruptionsAllowed
				}
			}
		}
	})
	return ready, free
}

// delays are, in order of their size, the times from each sight to the request that
// answers it. A sight may come late: then it took no time.
func delays(seen []time.Time, requests []request) []time.Duration {
	var took []time.Duration
	for i := range min(len(seen), len(requests)) {
		took = append(took, max(0, requests[i].RequestReceivedTimestamp.Sub(seen[i])).Round(time.Millisecond))
	}
	slices.Sort(took)
	return took
}
