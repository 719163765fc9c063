package hostile

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/drain/plan"
	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

func (r *round) peak(name string, peak int) {
	what, _, _ := strings.Cut(name, " ")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.peaks[what] = max(r.peaks[what], peak)
}

// watchReady follows the shop, and says how few of its pods were ready at any moment.
func (r *round) watchReady(ctx context.Context, background *sync.WaitGroup) (fewest func() int) {
	var mu sync.Mutex
	least := lost
	background.Go(func() {
		_, _ = r.cluster.WaitPods(ctx, shop, "", func(pods []*corev1.Pod) bool {
			n, others := 0, ""
			for _, p := range pods {
				if controlplane.Ready(p) {
					n++
				} else {
					others += fmt.Sprintf("\n%s on %q: surged %t, deleted %v", p.Name, p.Spec.NodeName, p.Labels[plan.SurgedLabel] != "", p.DeletionTimestamp)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if len(pods) > 0 && n < least { // before the list is complete
				least = n
				r.Logf("%s: %d of the shop's pods are ready, and not:%s", time.Now().Format(time.TimeOnly), n, others)
			}
			return false
		})
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return least
	}
}

// watchBudgets writes a disruption budget of somebody who has nothing else, again and again, and says
// how long kube-controller-manager has taken at most to see it. While that is busy with the tenant, no
// budget of the cluster is updated, so evictions that need the shop's budget wait.
func (r *round) watchBudgets(ctx context.Context, background *sync.WaitGroup) (longest func() time.Duration) {
	const namespace = "bystander"
	r.must(r.cluster.CreateNamespace(ctx, namespace))
	budgets := r.cluster.Client.PolicyV1().PodDisruptionBudgets(namespace)
	one := intstr.FromInt32(1)
	budget, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"no": "pod"}}},
	}, metav1.CreateOptions{})
	r.must(err)
	var mu sync.Mutex
	var most time.Duration
	background.Go(func() {
		wrote, seen := time.Now(), false
		for i := 2; ; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(250 * time.Millisecond):
			}
			now, err := budgets.Get(ctx, namespace, metav1.GetOptions{})
			if err != nil {
				continue
			}
			seen = now.Status.ObservedGeneration >= budget.Generation
			mu.Lock()
			most = max(most, time.Since(wrote))
			mu.Unlock()
			if !seen {
				continue
			}
			wrote = time.Now()
			patch := fmt.Appendf(nil, `{"spec":{"minAvailable":%d}}`, i)
			if changed, err := budgets.Patch(ctx, namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err == nil {
				budget, i = changed, i+1
			}
		}
	})
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return most
	}
}

// waitOff waits until the shop has left the lost nodes, at most until the deadline.
func (r *round) waitOff(ctx context.Context, deadline time.Time) time.Time {
	lostNodes := map[string]bool{}
	for _, n := range r.tenant.Nodes {
		lostNodes[n] = true
	}
	bounded, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	pods, err := r.cluster.WaitPods(bounded, shop, "", func(pods []*corev1.Pod) bool {
		return len(pods) > 0 && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return lostNodes[p.Spec.NodeName] })
	})
	if err != nil {
		still := 0
		for _, p := range pods {
			if lostNodes[p.Spec.NodeName] {
				still++
			}
		}
		r.Errorf("ready: %d pods of the shop were on their nodes at the deadline", still)
		how := map[string]int{}
		for _, p := range pods {
			how[fmt.Sprintf("surged %t, has a node %t, ready %t", p.Labels[plan.SurgedLabel] != "", p.Spec.NodeName != "", controlplane.Ready(p))]++
		}
		r.Logf("the shop's pods: %v", how)
		leader := r.daemons[r.leads()].Lines("")
		for _, line := range leader[max(0, len(leader)-5):] {
			r.Logf("%s: %.400v", r.leads(), line)
		}
		o, err := Command(ctx, r.cluster.Kubeconfig, "status", "--node="+r.tenant.Nodes[0])
		r.Logf("%v\n%s", err, o.Out)
	}
	return time.Now()
}

// judgeNotices: the tenant's receivers delay nobody else's.
func (r *round) judgeNotices(sent time.Time, pods []corev1.Pod, within time.Duration) {
	recorded := map[string]time.Time{}
	nodes, err := r.cluster.Client.CoreV1().Nodes().List(r.Context(), metav1.ListOptions{})
	r.must(err)
	for _, n := range nodes.Items {
		if rec, err := interruption.ParseRecord(n.Annotations[interruption.Annotation]); err == nil {
			recorded[n.Name] = rec.Received
		}
	}
	var slowest time.Duration
	silent := 0
	r.mu.Lock()
	all := maps.Clone(r.heard)
	r.mu.Unlock()
	for _, p := range pods {
		heard, ok := all[p.Namespace+"/"+p.Name]
		if !ok {
			silent++
			continue
		}
		from := sent
		if at := recorded[p.Spec.NodeName]; !at.IsZero() {
			from = at
		}
		slowest = max(slowest, heard.Sub(from))
	}
	r.Logf("the shop's pods were notified within %.1fs of the record; %d of %d were not", slowest.Seconds(), silent, len(pods))
	if silent > 0 || slowest > within {
		r.Errorf("notices: %d of %d pods of the shop were not notified, the last after %s, want %s", silent, len(pods), slowest, within)
	}
}
