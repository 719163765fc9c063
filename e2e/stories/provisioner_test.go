package stories

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
)

// replacer is a provisioner within the test, against the story's cluster.
type replacer struct {
	*story
	*provisioner.Provisioner
	pools   *karpenter.Backend
	changed chan string
}

func (s *story) replacer(client dynamic.Interface, fallbacks map[string]string) *replacer {
	s.Helper()
	r, _ := s.replacerWith(karpenter.Options{FallbackNodePools: fallbacks, Dynamic: client, TTL: 10 * time.Minute})
	return r
}

// replacerWith is replacer with options, and with what ends it before the story does.
func (s *story) replacerWith(o karpenter.Options) (r *replacer, end func()) {
	s.Helper()
	r = &replacer{story: s, changed: make(chan string, 1)}
	logger := zerolog.New(zerolog.NewTestWriter(s.T))
	o.Nodes, o.Pods, o.Logger = s.cluster.Client.CoreV1().Nodes(), s.cluster.Client.CoreV1().Pods(""), logger
	o.Notify = func(node string) {
		select {
		case r.changed <- node:
		default: // the last one has not been taken yet, and says the same
		}
	}
	o.Offerings, o.Node = offerings.New(), func(string) (*corev1.Node, bool) { return nil, false } // none is in memory
	r.pools = karpenter.New(o)
	r.Provisioner = provisioner.New(provisioner.Options{Choice: provisioner.Auto, Backends: []provisioner.Backend{r.pools}, Logger: logger})
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.Errorf("Run: %v", err)
		}
	})
	s.Cleanup(end)
	return r, end
}

func spotRecord(node *corev1.Node, deadline time.Time) interruption.Record {
	return interruption.NewRecord(interruption.Notice{
		Kind: interruption.SpotInterruption, Source: interruption.Queue, EventID: "event-1",
		InstanceID: controlplane.InstanceID(node.Name), Noticed: time.Now(), Received: time.Now(), Deadline: deadline,
	})
}

// onePod has to move.
func onePod() provisioner.Need {
	requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	return provisioner.Need{Moving: []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod"},
		Spec: corev1.PodSpec{
			Containers:  []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Requests: requests}}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}}}
}

// ask requests once and keeps the answer in the record.
func (r *replacer) ask(node *corev1.Node, rec *interruption.Record) interruption.Replacement {
	r.Helper()
	return r.askFor(node, rec, onePod())
}

func (r *replacer) askFor(node *corev1.Node, rec *interruption.Record, need provisioner.Need) interruption.Replacement {
	r.Helper()
	got, err := r.Request(r.ctx, node, *rec, need)
	for try := 0; err != nil && try < 5; try++ { // such as a conflict with Karpenter: it is asked again
		r.Logf("request a replacement: %v", err)
		time.Sleep(500 * time.Millisecond)
		got, err = r.Request(r.ctx, node, *rec, need)
	}
	r.must(err)
	rec.Replacement = &got
	return got
}

// settle asks, and again whenever it is notified, and only then, until the
// replacement is no longer pending.
func (r *replacer) settle(node *corev1.Node, rec *interruption.Record) interruption.Replacement {
	r.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		if got := r.ask(node, rec); !provisioner.Pending(got.State) {
			return got
		}
		select {
		case <-r.changed:
		case <-timeout:
			r.Fatalf("the replacement is still %+v", *rec.Replacement)
		}
	}
}

func (s *story) claim(name string) *unstructured.Unstructured {
	s.Helper()
	claim, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	return claim
}

func drifted(claim *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(claim.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Drifted" && c["status"] == "True" {
			return true
		}
	}
	return false
}

// Karpenter launches the replacement as one of its own: with the pool's taints and
// labels, and without drift. A second process, or one without the record, finds the
// same claim. In the end the interrupted node goes with its claim.
func TestReplacementByKarpenter(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	taint := corev1.Taint{Key: "example.com/dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule}
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "spot", Labels: map[string]string{"example.com/tier": "silver"}},
		controlplane.PoolSpec{
			Name: "fallback", Capacity: []string{controlplane.OnDemand}, Boot: 2 * time.Second,
			Taints: []corev1.Taint{taint}, Labels: map[string]string{"team": "web"},
			Change: func(pool *unstructured.Unstructured) {
				requirements, _, _ := unstructured.NestedSlice(pool.Object, "spec", "template", "spec", "requirements")
				requirements = append(requirements,
					map[string]any{"key": "example.com/tier", "operator": "In", "values": []any{"gold", "silver"}},
					map[string]any{"key": "example.com/rank", "operator": "Gt", "values": []any{"3"}})
				s.must(unstructured.SetNestedSlice(pool.Object, requirements, "spec", "template", "spec", "requirements"))
			},
		}))
	node := s.node("spot")
	fallbacks := map[string]string{"spot": "fallback"}
	rec := spotRecord(node, time.Now().Add(2*time.Minute))

	r := s.replacer(s.cluster.Dynamic, fallbacks)
	first := r.ask(node, &rec)
	if first.State != provisioner.StateRequested || first.Pool != "fallback" {
		t.Fatalf("replacement %+v, want one requested in pool fallback", first)
	}
	// Whoever does not know of it asks for the same.
	unaware := spotRecord(node, time.Now().Add(2*time.Minute))
	if again := s.replacer(s.cluster.Dynamic, fallbacks).settle(node, &unaware); again.Name != first.Name || again.State != provisioner.StateReady {
		t.Errorf("asked without the record: %+v, want %s, Ready", again, first.Name)
	}
	if got := r.settle(node, &rec); got.State != provisioner.StateReady {
		t.Fatalf("replacement %+v, want Ready", got)
	}
	if claims := s.claims("fallback", ""); len(claims) != 1 {
		t.Errorf("claims %v, want one", claims)
	}

	claim := s.claim(first.Name)
	name, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
	replacement, err := s.cluster.WaitNode(s.ctx, name, func(n *corev1.Node) bool { return n != nil && n.Labels["karpenter.sh/initialized"] == "true" })
	s.must(err)
	for key, want := range map[string]string{
		"karpenter.sh/nodepool": "fallback", "karpenter.sh/capacity-type": "on-demand", "team": "web",
		"example.com/tier": "silver", "example.com/rank": "4", "karpenter.kwok.sh/kwoknodeclass": "fallback",
	} {
		if got := replacement.Labels[key]; got != want {
			t.Errorf("label %s of the replacement is %q, want %q", key, got, want)
		}
	}
	if !hasTaint(replacement, taint.Key) {
		t.Errorf("taints of the replacement %v, want %v among them", replacement.Spec.Taints, taint)
	}

	// A copy without a label that the pool requires drifts: by the time that Karpenter
	// has seen that, it has looked at ours too. Karpenter 1.0 makes labels of what a
	// claim itself requires, so the copy doesn't require it either.
	bad := claim.DeepCopy()
	unstructured.RemoveNestedField(bad.Object, "status")
	labels := bad.GetLabels()
	maps.DeleteFunc(labels, func(key, _ string) bool {
		return strings.HasPrefix(key, "example.com/") || strings.HasPrefix(key, "spot-handler/")
	})
	bad.SetLabels(labels)
	requirements, _, err := unstructured.NestedSlice(bad.Object, "spec", "requirements")
	s.must(err)
	requirements = slices.DeleteFunc(requirements, func(r any) bool {
		return strings.HasPrefix(r.(map[string]any)["key"].(string), "example.com/")
	})
	s.must(unstructured.SetNestedSlice(bad.Object, requirements, "spec", "requirements"))
	bad.SetName("drifting")
	bad.SetUID("")
	bad.SetResourceVersion("")
	bad.SetFinalizers(nil)
	_, err = s.cluster.Dynamic.Resource(controlplane.NodeClaims).Create(s.ctx, bad, metav1.CreateOptions{})
	s.must(err)
	s.eventually("drift of a claim without the pool's labels", func() bool { return drifted(s.claim("drifting")) })
	if claim = s.claim(first.Name); drifted(claim) {
		t.Errorf("the replacement has drifted: %v", claim.Object["status"])
	}

	// Release with another UID: the claim of a node that has long been replaced. And with another
	// instance: its kubelet can have named any owner.
	stale, forged := node.DeepCopy(), node.DeepCopy()
	stale.OwnerReferences[0].UID = "another"
	forged.Name, forged.Spec.ProviderID = "another", "kwok://another"
	var old *unstructured.Unstructured
	for _, other := range []*corev1.Node{stale, forged} {
		s.must(r.Terminate(s.ctx, other, rec))
		old = s.claim(node.OwnerReferences[0].Name)
		if old.GetDeletionTimestamp() != nil || old.GetAnnotations()["karpenter.sh/nodeclaim-termination-timestamp"] != "" {
			t.Errorf("the claim was touched, for node %s, whose claim has the UID %s: %v", other.Name, other.OwnerReferences[0].UID, old.Object["metadata"])
		}
	}

	watch, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).Watch(s.ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + old.GetName(), ResourceVersion: old.GetResourceVersion(),
	})
	s.must(err)
	defer watch.Stop()
	s.must(r.Terminate(s.ctx, node, rec))
	s.must(r.Terminate(s.ctx, node, rec)) // deleting, or gone
	for event := range watch.ResultChan() {
		seen, ok := event.Object.(*unstructured.Unstructured)
		if !ok || seen.GetDeletionTimestamp() == nil {
			continue
		}
		if got, want := seen.GetAnnotations()["karpenter.sh/nodeclaim-termination-timestamp"], rec.Deadline.Format(time.RFC3339); got != want {
			t.Errorf("deleted with termination timestamp %q, want the deadline, %s", got, want)
		}
		break
	}
	s.waitGone(node.Name)
	s.must(r.Terminate(s.ctx, node, rec)) // gone
}

// What cannot be launched is no replacement: Karpenter deletes some of it at once,
// and leaves some of it for minutes, in which it provisions nothing at all.
func TestReplacementThatIsNeverLaunched(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "spot"},
		s.refusing(controlplane.PoolSpec{Name: "classless"}),
		controlplane.PoolSpec{Name: "typeless", Change: typeless},
		controlplane.PoolSpec{Name: "full", Limits: map[string]string{"cpu": "0"}},
	))
	node := s.node("spot")

	for _, tt := range []struct {
		pool, reason string
		before       func(*replacer)
		least, most  time.Duration
	}{
		{"classless", "insufficient capacity, or the node class is not ready", func(r *replacer) {
			// The pool was Ready when it was read, a moment ago.
			_, err := r.pools.Weigh(s.ctx, node, spotRecord(node, time.Time{}), onePod())
			s.must(err)
			s.refuse("classless")
		}, 0, 20 * time.Second}, // less than the 25 s of a claim that is not launched
		{"typeless", "not launched in 25 s", nil, 23 * time.Second, time.Minute},
		{"full", "limit of NodePool full leaves no room", nil, 0, 15 * time.Second},
		{"nowhere", "does not exist", nil, 0, 15 * time.Second},
	} {
		r := s.replacer(s.cluster.Dynamic, map[string]string{"spot": tt.pool})
		if tt.before != nil {
			tt.before(r)
		}
		rec := spotRecord(node, time.Now().Add(2*time.Minute))
		began := time.Now()
		got := r.settle(node, &rec)
		if took := time.Since(began); took < tt.least || took > tt.most {
			t.Errorf("%s: it took %s, want %s to %s", tt.pool, took, tt.least, tt.most)
		}
		if got.State != provisioner.StateFailed || !strings.Contains(got.Reason, tt.reason) {
			t.Errorf("%s: replacement %+v, want Failed: %s", tt.pool, got, tt.reason)
		}
		s.eventually("end of the claims of pool "+tt.pool, func() bool { return len(s.claims(tt.pool, "")) == 0 })
		if again := r.ask(node, &rec); again != got {
			t.Errorf("%s: asked again: %+v, want %+v", tt.pool, again, got)
		}
	}
}

// loseNodeClass deletes the node class of a pool, and waits until Karpenter knows.
func (s *story) loseNodeClass(pool string) {
	s.Helper()
	s.must(s.cluster.Dynamic.Resource(controlplane.NodeClasses).Delete(s.ctx, pool, metav1.DeleteOptions{}))
	s.eventually("NodePool "+pool+" not Ready", func() bool {
		p, err := s.cluster.Dynamic.Resource(controlplane.NodePools).Get(s.ctx, pool, metav1.GetOptions{})
		s.must(err)
		conditions, _, _ := unstructured.NestedSlice(p.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			condition, _ := c.(map[string]any)
			return condition["type"] == "Ready" && condition["status"] != "True"
		})
	})
}

// Without Karpenter's API, or without the right to use it, nodes are only drained.
func TestReplacementWithoutKarpenter(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "node-1", UID: "uid-1", Labels: map[string]string{"karpenter.sh/nodepool": "spot"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "spot-1", UID: "uid-2"}},
	}}
	config, err := s.cluster.ServiceAccountConfig(s.ctx, "default", "default", "")
	s.must(err)
	powerless, err := dynamic.NewForConfig(config)
	s.must(err)
	for _, tt := range []struct {
		client dynamic.Interface
		reason string
	}{
		{s.cluster.Dynamic, "the API of Karpenter (karpenter.sh/v1) is not installed"},
		{powerless, `the API server forbids it: User "system:serviceaccount:default:default" cannot get resource "nodeclaims" in API group "karpenter.sh" at the cluster scope`},
	} {
		r := s.replacer(tt.client, map[string]string{"spot": "fallback"})
		rec := spotRecord(node, time.Now().Add(2*time.Minute))
		if got := r.ask(node, &rec); got.State != provisioner.StateUnsupported || got.Reason != tt.reason {
			t.Errorf("replacement %+v, want Unsupported: %s", got, tt.reason)
		}
		s.must(r.Terminate(s.ctx, node, rec))
	}
}
