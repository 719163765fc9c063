package karpenter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

const claimName = "fallback-" + instance

// cluster is an API server's Karpenter objects. It gives new objects what the real
// one gives; preconditions are proved against the real one.
type cluster struct {
	*dynamicfake.FakeDynamicClient
	t *testing.T
	p *provisioner.Provisioner

	nodes    *fakeNodes
	log      bytes.Buffer
	registry *prometheus.Registry

	mu       sync.Mutex
	notified []string
}

// newCluster has the node's claim, its pool and the fallback pool, and a running
// Backend behind a Provisioner. It is to be called in a synctest bubble.
func newCluster(t *testing.T, opts Options, objects ...runtime.Object) *cluster {
	t.Helper()
	if objects == nil {
		objects = []runtime.Object{sourcePool(), fallbackPool(t), sourceNodeClaim()}
	}
	c := &cluster{t: t, registry: prometheus.NewRegistry()}
	c.FakeDynamicClient = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{
			nodePoolResource: "NodePoolList", nodeClaimResource: "NodeClaimList", budgetResource: "PodDisruptionBudgetList",
			daemonSetResource: "DaemonSetList",
		}, objects...)
	c.PrependReactor("create", "nodeclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		u := a.(clienttesting.CreateAction).GetObject().(*unstructured.Unstructured)
		u.SetUID(types.UID("uid-of-" + u.GetName()))
		u.SetCreationTimestamp(metav1.Now())
		u.SetResourceVersion("1")
		err := c.Tracker().Create(nodeClaimResource, u, "")
		return true, u, err
	})
	c.nodes = &fakeNodes{nodes: map[string]*corev1.Node{}}
	opts.Nodes, opts.Pods, opts.Events = c.nodes, c.nodes, c.nodes
	c.nodes.put(withRecord(interruptedNode(), record()))
	opts.Dynamic, opts.Logger = c.FakeDynamicClient, zerolog.New(zerolog.SyncWriter(&c.log))
	opts.Notify = func(node string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.notified = append(c.notified, node)
	}
	c.p = provisioner.New(provisioner.Options{Backends: []provisioner.Backend{New(opts)}, Registerer: c.registry, Logger: opts.Logger})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.p.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

// request asks once, lets the watch come up to date and keeps the answer.
func (c *cluster) request(rec *interruption.Record) interruption.Replacement {
	c.t.Helper()
	r, err := c.p.Request(c.t.Context(), interruptedNode(), *rec, need())
	if err != nil {
		c.t.Fatalf("Request: %v", err)
	}
	rec.Replacement = &r
	synctest.Wait()
	return r
}

// calls are those to the API server since the last time, without the watch's own.
func (c *cluster) calls() []string {
	var calls []string
	for _, a := range c.Actions() {
		if a.GetVerb() != "list" && a.GetVerb() != "watch" {
			calls = append(calls, a.GetVerb()+" "+a.GetResource().Resource)
		}
	}
	c.ClearActions()
	return calls
}

func (c *cluster) wantCalls(want ...string) {
	c.t.Helper()
	if got := c.calls(); !slices.Equal(got, want) {
		c.t.Errorf("calls %q, want %q", got, want)
	}
}

// forgetNotified drops what was notified until now. Whether a new claim is depends
// on who is first, the call's answer or the watch.
func (c *cluster) forgetNotified() {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notified = nil
}

func (c *cluster) wantNotified(want bool) {
	c.t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := slices.Contains(c.notified, "node-1"); got != want {
		c.t.Errorf("notified: %t, want %t", got, want)
	}
	c.notified = nil
}

// wantCount compares the counter of a result, of whichever backend.
func (c *cluster) wantCount(result string, want float64) {
	c.t.Helper()
	got, shown := 0.0, 0
	families, err := c.registry.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "spot_handler_replacements_total" && l.GetName() == "result" && l.GetValue() == result {
					got += m.GetCounter().GetValue()
					shown++
				}
			}
		}
	}
	if got != want || shown != 2 {
		c.t.Errorf("replacements_total{result=%q} is %v in %d series, want %v in 2", result, got, shown, want)
	}
}

// condition plays Karpenter.
func (c *cluster) condition(kind, status, message string) {
	c.t.Helper()
	c.setCondition(kind, status, message)
	synctest.Wait()
}

func (c *cluster) setCondition(kind, status, message string) {
	c.t.Helper()
	u, err := c.Tracker().Get(nodeClaimResource, "", claimName)
	if err != nil {
		c.t.Fatal(err)
	}
	claim := u.(*unstructured.Unstructured).DeepCopy()
	conditions, _, _ := unstructured.NestedSlice(claim.Object, "status", "conditions")
	conditions = append(conditions, map[string]any{"type": kind, "status": status, "message": message, "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)})
	set(conditions, "status", "conditions")(claim)
	claim.SetResourceVersion(fmt.Sprint(len(conditions) + 1))
	if kind == "Registered" {
		set(replacementNode, "status", "nodeName")(claim)
	}
	if err := c.Tracker().Update(nodeClaimResource, claim, ""); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) remove() {
	c.t.Helper()
	if err := c.Tracker().Delete(nodeClaimResource, "", claimName); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

func wantState(t *testing.T, r interruption.Replacement, state, reason string) {
	t.Helper()
	if r.State != state || !strings.Contains(r.Reason, reason) || (reason == "") != (r.Reason == "") {
		t.Errorf("state %s (%s), want %s (%s)", r.State, r.Reason, state, reason)
	}
}

func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestReplacementFromNoticeToRelease(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		synctest.Wait()
		if n := len(c.Actions()); n != 1 || c.Actions()[0].GetVerb() != "list" {
			t.Fatalf("%d calls before the first interruption, want one, for what an earlier process has left", n)
		}

		r := c.request(&rec)
		if want := (interruption.Replacement{Backend: provisioner.Karpenter, Name: claimName, Pool: "fallback", State: provisioner.StateRequested}); r != want {
			t.Fatalf("replacement %+v, want %+v", r, want)
		}
		c.wantCalls("get nodepools", "get nodepools", "get nodeclaims", "create nodeclaims")
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
		c.forgetNotified()

		time.Sleep(3 * time.Second)
		c.condition("Launched", "True", "")
		c.wantNotified(true)
		wantState(t, c.request(&rec), provisioner.StateLaunched, "")
		c.condition("Registered", "True", "")
		c.wantNotified(false)
		time.Sleep(37 * time.Second)
		c.condition("Initialized", "True", "")
		c.wantNotified(true)
		wantState(t, c.request(&rec), provisioner.StateReady, "")

		// What happens to it later is no matter of this interruption.
		c.remove()
		wantState(t, c.request(&rec), provisioner.StateReady, "")
		c.wantCalls()

		if err := c.p.Release(t.Context(), interruptedNode(), rec); err != nil {
			t.Fatal(err)
		}
		c.wantCalls("patch nodeclaims", "delete nodeclaims")
		if err := c.p.Release(t.Context(), interruptedNode(), rec); err != nil {
			t.Errorf("second Release: %v", err)
		}

		for _, result := range []string{"requested", "launched", "ready"} {
			c.wantCount(result, 1)
		}
		families, err := c.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "spot_handler_replacement_ready_seconds" {
				if h := f.GetMetric()[0].GetHistogram(); h.GetSampleCount() != 1 || h.GetSampleSum() != 40 {
					t.Errorf("%s: %d samples of %v s, want 1 of 40", f.GetName(), h.GetSampleCount(), h.GetSampleSum())
				}
			}
		}
	})
}

func TestRecordGuardsAgainstASecondRequest(t *testing.T) {
	bubble(t, "answer not yet recorded", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		c.ClearActions()
		rec.Replacement = nil
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
		if slices.Contains(c.calls(), "create nodeclaims") {
			t.Error("asked again")
		}
		c.wantCount("requested", 1)
	})
	bubble(t, "made by a process that died", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		other := newOrder(t).build()
		if _, err := c.Resource(nodeClaimResource).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
		c.condition("Launched", "True", "")
		wantState(t, c.request(&rec), provisioner.StateLaunched, "")
	})
	bubble(t, "somebody else's", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		other := newOrder(t).build()
		other.SetLabels(map[string]string{ReplacesLabel: "i-1"})
		if _, err := c.Resource(nodeClaimResource).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		wantState(t, c.request(&rec), provisioner.StateFailed, "not ours")
	})
	bubble(t, "restart", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		claim := newOrder(t).build()
		if _, err := c.Resource(nodeClaimResource).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.condition("Launched", "True", "")
		c.ClearActions()
		rec.Replacement = &interruption.Replacement{Backend: provisioner.Karpenter, Name: claimName, Pool: "fallback", State: provisioner.StateRequested}
		if _, err := c.p.Request(t.Context(), interruptedNode(), rec, need()); err != nil { // the watch may not have begun
			t.Fatal(err)
		}
		synctest.Wait()
		wantState(t, c.request(&rec), provisioner.StateLaunched, "")
		c.wantCalls()
	})
}

func TestFailures(t *testing.T) {
	bubble(t, "not launched in time", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		time.Sleep(5 * time.Second)
		c.condition("Launched", "Unknown", "no subnet")
		c.request(&rec)
		c.forgetNotified()
		c.ClearActions()
		time.Sleep(launchTimeout - 6*time.Second)
		c.wantNotified(false)
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
		time.Sleep(2 * time.Second)
		c.wantNotified(true)
		wantState(t, c.request(&rec), provisioner.StateFailed, "not launched in 25 s: no subnet")
		c.wantCalls("delete nodeclaims", "get nodepools")
		time.Sleep(time.Minute)
		wantState(t, c.request(&rec), provisioner.StateFailed, "not launched in 25 s")
		c.wantCalls("get nodeclaims") // looked after, and gone
		c.wantCount("failed", 1)
	})
	bubble(t, "not launched in time, restart", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		if _, err := c.Resource(nodeClaimResource).Create(t.Context(), newOrder(t).build(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(launchTimeout + orphanGrace/2)
		rec.Replacement = &interruption.Replacement{Backend: provisioner.Karpenter, Name: claimName, Pool: "fallback", State: provisioner.StateRequested}
		c.request(&rec)
		c.wantNotified(true)
		wantState(t, c.request(&rec), provisioner.StateFailed, "not launched in 25 s")
	})
	bubble(t, "launched in the last moment", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		c.PrependReactor("delete", "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			c.setCondition("Launched", "True", "")
			return true, nil, apierrors.NewConflict(nodeClaimResource.GroupResource(), claimName, errors.New("precondition"))
		})
		time.Sleep(launchTimeout)
		wantState(t, c.request(&rec), provisioner.StateLaunched, "")
	})
	bubble(t, "changed in the last moment", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		c.PrependReactor("delete", "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewConflict(nodeClaimResource.GroupResource(), claimName, errors.New("precondition"))
		})
		time.Sleep(launchTimeout)
		if _, err := c.p.Request(t.Context(), interruptedNode(), rec, need()); err == nil {
			t.Error("no error, want one that has the caller try again")
		}
	})
	bubble(t, "no capacity", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		c.request(&rec)
		c.ClearActions()
		c.forgetNotified()
		c.remove()
		c.wantNotified(true)
		wantState(t, c.request(&rec), provisioner.StateFailed, "insufficient capacity")
		c.wantCalls("get nodeclaims") // the absence is checked
		c.request(&rec)
		c.wantCalls()
		time.Sleep(time.Hour)
		c.wantNotified(false)
	})
	bubble(t, "taken away while it boots", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		c.condition("Launched", "True", "")
		c.request(&rec)
		c.remove()
		wantState(t, c.request(&rec), provisioner.StateFailed, "before its node was Ready")
	})
	bubble(t, "refused", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.PrependReactor("create", "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInvalid(schema.GroupKind{Group: karpenterGroup, Kind: "NodeClaim"}, claimName, nil)
		})
		wantState(t, c.request(&rec), provisioner.StateFailed, "invalid")
	})
	bubble(t, "transient", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		broken := true
		c.PrependReactor("create", "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return broken, nil, apierrors.NewServiceUnavailable("starting")
		})
		if _, err := c.p.Request(t.Context(), interruptedNode(), rec, need()); err == nil {
			t.Error("no error, want a transient one")
		}
		broken = false
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
	})
}

func TestChoice(t *testing.T) {
	without := func(path ...string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) { unstructured.RemoveNestedField(u.Object, path...) }
	}
	notReady := set([]any{map[string]any{"type": "Ready", "status": "False", "message": "node class gone"}}, "status", "conditions")
	deleting := func(u *unstructured.Unstructured) {
		now := metav1.Now()
		u.SetDeletionTimestamp(&now)
	}
	bare := func(u *unstructured.Unstructured) { u.SetAnnotations(nil) }
	type objects struct {
		source, fallback, claim []func(*unstructured.Unstructured)
	}
	type changes = []func(*unstructured.Unstructured)
	for name, tt := range map[string]struct {
		opts    Options
		objects objects
		node    func(*corev1.Node)
		need    *provisioner.Need
		state   string
		reason  string
	}{
		"annotation":                  {state: provisioner.StateRequested},
		"flag":                        {opts: Options{FallbackNodePools: map[string]string{"spot": "fallback"}}, objects: objects{source: changes{bare}}, state: provisioner.StateRequested},
		"annotation goes before flag": {opts: Options{FallbackNodePools: map[string]string{"spot": "nowhere"}}, state: provisioner.StateRequested},
		"flag of another pool":        {opts: Options{FallbackNodePools: map[string]string{"batch": "fallback"}}, objects: objects{source: changes{bare}}, state: provisioner.StateRequested},
		"nothing named":               {objects: objects{source: changes{bare}}, state: provisioner.StateRequested},
		"source pool unreadable":      {objects: objects{source: changes{set("many", "spec", "limits")}}, state: provisioner.StateRequested},
		"named pool does not exist":   {opts: Options{FallbackNodePools: map[string]string{"spot": "nowhere"}}, objects: objects{source: changes{bare}}, state: provisioner.StateFailed, reason: "NodePool nowhere, named by --fallback-nodepool, does not exist"},
		"static":                      {objects: objects{fallback: changes{set(int64(3), "spec", "replicas")}}, state: provisioner.StateFailed, reason: "static"},
		"not Ready":                   {objects: objects{fallback: changes{notReady}}, state: provisioner.StateFailed, reason: "NodePool fallback, named by annotation spot-handler/fallback-nodepool of NodePool spot, is not Ready: node class gone"},
		"no status":                   {objects: objects{fallback: changes{without("status")}}, state: provisioner.StateFailed, reason: "not Ready"},
		"deleting":                    {objects: objects{fallback: changes{deleting}}, state: provisioner.StateFailed, reason: "deleted"},
		"no node class":               {objects: objects{fallback: changes{without("spec", "template", "spec", "nodeClassRef")}}, state: provisioner.StateFailed, reason: "nodeClassRef"},
		"no template":                 {objects: objects{fallback: changes{without("spec", "template")}}, state: provisioner.StateFailed, reason: "nodeClassRef"},
		"hostile template":            {objects: objects{fallback: changes{set("x", "spec", "template")}}, state: provisioner.StateFailed, reason: "cannot be read"},
		"hostile requirements":        {objects: objects{fallback: changes{set([]any{"x"}, "spec", "template", "spec", "requirements")}}, state: provisioner.StateFailed, reason: "cannot be read"},
		"no room":                     {objects: objects{fallback: changes{set("100500m", "spec", "limits", "cpu")}}, state: provisioner.StateFailed, reason: "limit of NodePool fallback leaves no room (cpu: 100 used, 850m asked for, limit 100500m)"},
		"the same pool":               {opts: Options{FallbackNodePools: map[string]string{"fallback": "fallback"}}, node: func(n *corev1.Node) { n.Labels[nodePoolLabel] = "fallback" }, state: provisioner.StateRequested},
		"not Karpenter's":             {node: func(n *corev1.Node) { n.Labels, n.OwnerReferences = nil, nil }, state: provisioner.StateUnsupported, reason: reasonNotMade},
		"another's NodeClaim":         {node: func(n *corev1.Node) { n.Labels, n.OwnerReferences[0].APIVersion = nil, "example.com/v1" }, state: provisioner.StateUnsupported, reason: reasonNotMade},
		"label alone":                 {node: func(n *corev1.Node) { n.OwnerReferences = nil }, state: provisioner.StateRequested},
		"owner alone":                 {node: func(n *corev1.Node) { n.Labels = nil }, state: provisioner.StateUnsupported, reason: reasonNoPool},
		"nothing moves":               {need: &provisioner.Need{Daemons: need().Daemons}, state: provisioner.StateUnsupported, reason: reasonNoMoving},
		"claim deleting":              {objects: objects{claim: changes{deleting}}, state: provisioner.StateUnsupported, reason: reasonReplacing},
		"another claim deleting":      {objects: objects{claim: changes{deleting, func(u *unstructured.Unstructured) { u.SetUID("other") }}}, state: provisioner.StateRequested},
		"hostile claim":               {objects: objects{claim: changes{set("x", "spec")}}, state: provisioner.StateRequested},
	} {
		bubble(t, name, func(t *testing.T) {
			source, claim := sourcePool(), sourceNodeClaim()
			for _, f := range tt.objects.source {
				f(source)
			}
			for _, f := range tt.objects.claim {
				f(claim)
			}
			c := newCluster(t, tt.opts, source, fallbackPool(t, tt.objects.fallback...), claim)
			time.Sleep(2 * time.Second)
			rec, node, n := record(), interruptedNode(), need()
			if tt.node != nil {
				tt.node(node)
			}
			if tt.need != nil {
				n = *tt.need
			}
			chosen, err := c.p.Choose(t.Context(), node, rec, n)
			if err != nil {
				t.Fatal(err)
			}
			wantState(t, chosen, tt.state, tt.reason)
			for _, a := range c.Actions() {
				if a.GetVerb() != "get" && a.GetVerb() != "list" {
					t.Errorf("Choose made the call %s", a.GetVerb())
				}
			}
			for range 3 { // level-triggered
				got, err := c.p.Request(t.Context(), node, rec, n)
				if err != nil {
					t.Fatal(err)
				}
				if got != chosen {
					t.Errorf("Request: %+v, want as Choose: %+v", got, chosen)
				}
			}
			c.wantCount(strings.ToLower(tt.state), 1)
			if lines := strings.Count(c.log.String(), "\n"); lines != 1 {
				t.Errorf("%d log lines, want 1:\n%s", lines, c.log.String())
			}
		})
	}
}

// A node that was unsupported is looked at again, but what Karpenter deletes it
// replaces.
func TestUnsupportedIsJudgedAgain(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		source := sourcePool()
		source.SetAnnotations(nil)
		notReady := fallbackPool(t, set([]any{}, "status", "conditions"))
		c, rec := newCluster(t, Options{}, source, notReady, sourceNodeClaim()), record()
		wantState(t, c.request(&rec), provisioner.StateUnsupported, "none suits: fallback is not Ready")
		if err := c.Tracker().Update(nodePoolResource, fallbackPool(t), ""); err != nil {
			t.Fatal(err)
		}
		wantState(t, c.request(&rec), provisioner.StateUnsupported, "none suits")
		time.Sleep(poolTTL + time.Second)
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
	})
	bubble(t, "being replaced", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		r := unsupported(reasonReplacing)
		rec.Replacement = &r
		wantState(t, c.request(&rec), provisioner.StateUnsupported, reasonReplacing)
		c.wantCalls()
	})
}

func TestBurstReadsThePoolsOnce(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := newCluster(t, Options{})
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				node, rec := interruptedNode(), record()
				node.Name = fmt.Sprintf("node-%d", i)
				rec.Instance = fmt.Sprintf("i-%d", i)
				if r, err := c.p.Request(t.Context(), node, rec, need()); err != nil || r.State != provisioner.StateRequested {
					t.Errorf("Request: %+v, %v", r, err)
				}
			})
		}
		wg.Wait()
		count := map[string]int{}
		for _, call := range c.calls() {
			count[call]++
		}
		if count["get nodepools"] != 2 || count["create nodeclaims"] != 500 || count["get nodeclaims"] != 500 {
			t.Errorf("calls %v, want 2 reads of pools, and one read and one create of a claim for each of 500", count)
		}
	})
}

func TestKarpenterIsNotThere(t *testing.T) {
	absent := apierrors.NewGenericServerResponse(404, "get", nodePoolResource.GroupResource(), "spot", "404 page not found", 0, true)
	forbidden := apierrors.NewForbidden(nodePoolResource.GroupResource(), "spot", errors.New("no RBAC"))
	for name, tt := range map[string]struct {
		verb, resource string
		err            error
		reason         string
	}{
		"not installed":        {"get", "nodepools", absent, "not installed"},
		"no reading of pools":  {"get", "nodepools", forbidden, "forbids us to get NodePools"},
		"no reading of claims": {"get", "nodeclaims", forbidden, "forbids us to get NodeClaims"},
		"no creating":          {"create", "nodeclaims", forbidden, "forbids us to create NodeClaims"},
	} {
		bubble(t, name, func(t *testing.T) {
			c, calls, broken := newCluster(t, Options{}), 0, true
			c.PrependReactor(tt.verb, tt.resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				calls++
				return broken, nil, tt.err
			})
			for i := range 20 {
				rec, node := record(), interruptedNode()
				rec.Instance, node.Name = fmt.Sprintf("i-%d", i), fmt.Sprintf("node-%d", i)
				r, err := c.p.Request(t.Context(), node, rec, need())
				if err != nil {
					t.Fatal(err)
				}
				wantState(t, r, provisioner.StateUnsupported, tt.reason)
			}
			if calls != 1 {
				t.Errorf("%d calls, want 1", calls)
			}
			if lines := strings.Count(c.log.String(), "\n"); lines != 1 {
				t.Errorf("%d log lines, want 1:\n%s", lines, c.log.String())
			}
			c.wantCount("unsupported", 20)
			broken = false
			time.Sleep(recheck)
			rec := record()
			wantState(t, c.request(&rec), provisioner.StateRequested, "")
		})
	}
}

func TestRelease(t *testing.T) {
	timestamp := func(t *testing.T, c *cluster) string {
		t.Helper()
		for _, a := range c.Actions() {
			if p, ok := a.(clienttesting.PatchAction); ok {
				return string(p.GetPatch())
			}
		}
		t.Fatal("no patch")
		return ""
	}
	refuse := func(c *cluster, verb string, err error) {
		c.PrependReactor(verb, "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
	}
	conflict := apierrors.NewConflict(nodeClaimResource.GroupResource(), "spot-abcde", errors.New("precondition"))

	bubble(t, "deadline", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		if err := c.p.Release(t.Context(), interruptedNode(), rec); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`{"metadata":{"uid":"source-uid","annotations":{"karpenter.sh/nodeclaim-termination-timestamp":%q}}}`, rec.Deadline.Format(time.RFC3339))
		if got := timestamp(t, c); got != want {
			t.Errorf("patch %s, want %s", got, want)
		}
		for _, a := range c.Actions() {
			if d, ok := a.(clienttesting.DeleteActionImpl); ok {
				if p := d.DeleteOptions.Preconditions; p == nil || p.UID == nil || *p.UID != "source-uid" {
					t.Errorf("preconditions %v, want the UID", p)
				}
			}
		}
		c.wantCalls("patch nodeclaims", "delete nodeclaims")
	})
	for name, deadline := range map[string]*time.Time{"no deadline": nil, "deadline past": {}} {
		bubble(t, name, func(t *testing.T) {
			c, rec := newCluster(t, Options{}), record()
			rec.Deadline = deadline
			if err := c.p.Release(t.Context(), interruptedNode(), rec); err != nil {
				t.Fatal(err)
			}
			if now := time.Now().UTC().Format(time.RFC3339); !strings.Contains(timestamp(t, c), now) {
				t.Errorf("patch %s, want %s", timestamp(t, c), now)
			}
		})
	}
	bubble(t, "another claim has the name", func(t *testing.T) {
		other := sourceNodeClaim()
		other.SetUID("other")
		c := newCluster(t, Options{}, other)
		refuse(c, "patch", apierrors.NewInvalid(schema.GroupKind{Group: karpenterGroup, Kind: "NodeClaim"}, "spot-abcde", nil))
		if err := c.p.Release(t.Context(), interruptedNode(), record()); err != nil {
			t.Error(err)
		}
		c.wantCalls("patch nodeclaims", "get nodeclaims")
	})
	bubble(t, "lost race", func(t *testing.T) {
		c := newCluster(t, Options{})
		refuse(c, "patch", conflict)
		if err := c.p.Release(t.Context(), interruptedNode(), record()); err == nil {
			t.Error("no error, want one that has the caller try again")
		}
		c.wantCalls("patch nodeclaims", "get nodeclaims")
	})
	bubble(t, "forbidden", func(t *testing.T) {
		c := newCluster(t, Options{})
		refuse(c, "patch", apierrors.NewForbidden(nodeClaimResource.GroupResource(), "spot-abcde", nil))
		for range 3 {
			if err := c.p.Release(t.Context(), interruptedNode(), record()); err != nil {
				t.Error(err)
			}
		}
		if lines := strings.Count(c.log.String(), "\n"); lines != 1 {
			t.Errorf("%d log lines, want 1:\n%s", lines, c.log.String())
		}
	})
	bubble(t, "transient", func(t *testing.T) {
		c := newCluster(t, Options{})
		refuse(c, "delete", apierrors.NewServiceUnavailable("starting"))
		if err := c.p.Release(t.Context(), interruptedNode(), record()); err == nil {
			t.Error("no error, want a transient one")
		}
	})
	bubble(t, "not Karpenter's", func(t *testing.T) {
		c, node := newCluster(t, Options{}), interruptedNode()
		node.OwnerReferences = nil
		if err := c.p.Release(t.Context(), node, record()); err != nil {
			t.Error(err)
		}
		c.wantCalls()
	})
}

// In the daemon of one node the watch shows that node's replacement alone.
func TestWatchOfOneInstance(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c, rec := newCluster(t, Options{SingleNode: true}), record()
		c.request(&rec)
		for _, a := range c.Actions() {
			if w, ok := a.(clienttesting.WatchActionImpl); ok {
				if got, want := w.GetWatchRestrictions().Labels.String(), ReplacesLabel+"="+instance+",!"+SettledLabel; got != want {
					t.Errorf("watch selects %q, want %q", got, want)
				}
				return
			}
		}
		t.Error("no watch")
	})
}

func TestSlim(t *testing.T) {
	claim := newOrder(t).build()
	set([]any{map[string]any{"type": "Launched", "status": "True"}, map[string]any{"type": "Drifted", "status": "True"}}, "status", "conditions")(claim)
	got, err := slim(claim)
	if err != nil {
		t.Fatal(err)
	}
	s := got.(*nodeClaim)
	if s.Name != claimName || s.state() != provisioner.StateLaunched || s.Labels[ReplacesLabel] != instance || s.Annotations[NodeAnnotation] != "node-1" {
		t.Errorf("slim claim %+v lacks what is asked of it", s)
	}
	if len(s.Spec.Requirements) != 0 || len(s.Status.Conditions) != 1 || len(s.Labels) != 2 || len(s.Annotations) != 2 {
		t.Errorf("slim claim %+v holds more than is asked of it", s)
	}
	if again, _ := slim(s); again != any(s) {
		t.Error("slim is not idempotent")
	}
	set("x", "status", "conditions")(claim)
	if got, err = slim(claim); err != nil || got.(*nodeClaim).state() != provisioner.StateRequested {
		t.Errorf("hostile claim: %+v, %v; want one that is not launched", got, err)
	}
}
