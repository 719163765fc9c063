package stories

import (
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/plan"
	"spot-handler/e2e/controlplane"
)

// The headline: a Deployment that allows surge loses not one ready pod while its node
// goes and the next one boots, under a budget that lets pods go one at a time. Nor does its
// Service ever have fewer endpoints: what follows those sends requests to surged pods, too.
func TestSurgeMovesAServiceWithoutADip(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.pools(8 * time.Second)
	node := s.node("batch")
	s.service("web", 8, func(d *controlplane.DeploymentSpec) {
		d.BudgetMaxUnavailable = budget(1)
		d.MaxSurge = budget(8)
		d.MinReadySeconds = 10 // for the budget's controller to count a replacement pod before a pod goes, on a busy machine too
	})
	if on := len(s.podsOn(node.Name, "web")); on != 8 {
		t.Fatalf("%d pods on the node, want all 8", on)
	}
	imds := s.imds(node)
	d := s.runIMDS(imds, node)
	fewest, endpoints := s.watchReady("web"), s.watchEndpoints("web", 8)

	imds.Interrupt("terminate", time.Now().Add(120*time.Second))
	drained := s.waitLine(d, "drained")
	s.waitGone(node.Name)
	if n := fewest(); n < 8 {
		t.Errorf("only %d pods were ready at some time, want never less than 8", n)
	}
	if n := endpoints(); n < 8 {
		t.Errorf("only %d endpoints were ready at some time, want never less than 8", n)
	}
	if drained["graceful"] != 8.0 {
		t.Errorf("not all 8 pods left gracefully: %v", drained)
	}
	if refused := s.metric(d, `spot_handler_evictions_total{code="429"}`); refused != 0 {
		t.Errorf("%v evictions refused by the budget, want none: the replacement pods were there", refused)
	}
	pods, err := s.cluster.WaitReady(s.ctx, "default", "web", 8)
	s.must(err)
	for _, p := range pods {
		if p.Labels[plan.SurgedLabel] != "" {
			t.Errorf("pod %s is surged and still there", p.Name)
		}
	}
	if claims := s.claims("batch-fallback", ""); len(claims) != 1 {
		t.Errorf("claims %v, want one", claims)
	}
}

// watchEndpoints makes a Service, waits until it has n ready endpoints, and returns a func for the
// smallest number of them that it has had since then.
func (s *story) watchEndpoints(service string, n int) (fewest func() int) {
	s.Helper()
	_, err := s.cluster.Client.CoreV1().Services("default").Create(s.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": service}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	s.must(err)
	factory := informers.NewSharedInformerFactoryWithOptions(s.cluster.Client, 0, informers.WithNamespace("default"),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelServiceName + "=" + service }))
	var mu sync.Mutex
	least := -1            // n have not been there yet
	see := func(obj any) { // all fit into one slice
		slice, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok {
			return
		}
		ready := 0
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				ready++
			}
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case least >= 0:
			least = min(least, ready)
		case ready == n:
			least = n
		}
	}
	_, err = factory.Discovery().V1().EndpointSlices().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) },
	})
	s.must(err)
	factory.Start(s.ctx.Done())
	fewest = func() int {
		mu.Lock()
		defer mu.Unlock()
		return least
	}
	s.eventually("endpoints", func() bool { return fewest() == n })
	return fewest
}
