package stories

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// occupy puts one bare pod on each node: something that has to move, and costs the
// machine little.
func (s *story) occupy(nodes []*corev1.Node) {
	s.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i, node := range nodes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i)},
				Spec: corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "app", Image: "fake", Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
				}}}},
			}
			if _, err := s.cluster.Client.CoreV1().Pods("default").Create(s.ctx, pod, metav1.CreateOptions{}); err != nil {
				s.Error(err)
			}
		})
	}
	wg.Wait()
}

// 200 nodes are interrupted at once, every message comes twice, the daemon is killed
// in the middle of the claims, and the fallback pool has room for 30 nodes. Never is
// there a claim too many, nor the same one twice.
func TestBurstKeepsToTheLimitsAsAWhole(t *testing.T) {
	s := newLargeStory(t, controlplane.Options{Karpenter: true, Audit: true, Heartbeat: 40 * time.Second})
	const count, room = 200, 30
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "spot", Weight: 100, CPUs: 2},
		controlplane.PoolSpec{Name: "fallback", CPUs: 2, Capacity: []string{controlplane.OnDemand}, Limits: map[string]string{"cpu": fmt.Sprint(room)}},
	))
	// To Karpenter they are nodes of the pool like others; it need not launch them. One
	// CPU is what their pods ask for, and kwok's instances have what their claims ask for.
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: count, CPUs: 1, Labels: map[string]string{"karpenter.sh/nodepool": "spot"}})
	s.must(err)
	s.occupy(nodes)
	server, queue := s.sqs()
	first := s.runQueue(server, queue)
	at := time.Now()
	send := func() {
		for _, node := range nodes {
			queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-"+node.Name, controlplane.InstanceID(node.Name), at))
		}
	}
	send()
	claims := func() int { return len(s.claims("fallback", "")) }
	s.eventually("some of the claims", func() bool { return claims() >= room/4 })
	first.Kill()
	killed := claims()
	send()
	s.runQueue(server, queue)
	s.eventually("a decision about every node", func() bool {
		list, err := s.cluster.Client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{LabelSelector: "karpenter.sh/nodepool=spot", ResourceVersion: "0"})
		return err == nil && len(list.Items) == count && !slices.ContainsFunc(list.Items, func(n corev1.Node) bool {
			rec, ok := record(&n)
			// Of a node whose pod had gone before the next process came, nothing had to be decided.
			return !ok || rec.Replacement == nil && !rec.Phase.Over() || rec.Phase == interruption.Noticed
		})
	})
	s.waitEmpty(queue)
	send() // once more, now that all of it is known
	s.waitEmpty(queue)

	made, requested := map[string]int{}, map[string]bool{}
	for _, r := range s.requests(func(r request) bool { return r.Verb == "create" && r.ObjectRef.Resource == "nodeclaims" }) {
		requested[r.ObjectRef.Name] = true // one that the kill broke off is logged with another code
		if r.ResponseStatus.Code != 201 {
			continue
		}
		if made[r.ObjectRef.Name]++; made[r.ObjectRef.Name] > 1 {
			t.Errorf("claim %q was made twice", r.ObjectRef.Name)
		}
	}
	t.Logf("%d claims when the daemon was killed, %d in the end, %d answered with 201, room for %d", killed, claims(), len(made), room)
	if n := claims(); n > room || n < room/2 || len(made) == 0 {
		t.Errorf("%d claims, %d answered with 201, want %d at the most, and about that", n, len(made), room)
	}
	for _, claim := range s.claims("fallback", "") {
		if !requested[claim] {
			t.Errorf("claim %q is not in the audit log", claim)
		}
	}
	pool, err := s.cluster.Dynamic.Resource(controlplane.NodePools).Get(s.ctx, "fallback", metav1.GetOptions{})
	s.must(err)
	text, _, _ := unstructured.NestedString(pool.Object, "status", "resources", "cpu")
	if used := resource.MustParse(text); used.Cmp(resource.MustParse(fmt.Sprint(room))) > 0 {
		t.Errorf("pool fallback has %s of cpu, want %d at the most", text, room)
	}
}
