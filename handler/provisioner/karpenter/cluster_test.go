package karpenter

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
)

// TestMain turns off client-go's pause between errors: it counts from process start, which in a synctest bubble is
// decades ahead.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

const claimName = "fallback-" + instance

// cluster is an API server's Karpenter objects. It gives new objects what the real
// one gives; preconditions are proved against the real one.
type cluster struct {
	*dynamicfake.FakeDynamicClient
	t *testing.T
	b *Backend
	p *provisioner.Provisioner

	nodes    *fakeNodes
	taken    *offerings.Memory
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
			nodePoolResource:  "NodePoolList",
			nodeClaimResource: "NodeClaimList",
			budgetResource:    "PodDisruptionBudgetList",
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
	c.taken = offerings.New()
	opts.Calm = DefaultCalm
	opts.Nodes, opts.Pods, opts.Events, opts.Offerings = c.nodes, c.nodes, c.nodes, c.taken
	if opts.Node == nil { // none is in memory
		opts.Node = func(string) (*corev1.Node, bool) { return nil, false }
	}
	c.nodes.put(withRecord(interruptedNode(), record()))
	opts.Dynamic, opts.Logger = c.FakeDynamicClient, zerolog.New(zerolog.SyncWriter(&c.log))
	opts.Notify = func(node string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.notified = append(c.notified, node)
	}
	c.b = New(opts)
	c.p = provisioner.New(provisioner.Options{Choice: provisioner.Auto, Backends: []provisioner.Backend{c.b}, Registerer: c.registry, Logger: opts.Logger})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.p.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait() // the first look at what others have left is over
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
// limitRefusals is how often the limits of a fallback pool are said to have left no room.
func (c *cluster) limitRefusals() float64 {
	c.t.Helper()
	var m dto.Metric
	if err := c.b.limitRefusals.Write(&m); err != nil {
		c.t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

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

// ready brings the claim that was asked for up.
func (c *cluster) ready() {
	c.t.Helper()
	c.condition("Launched", "True", "")
	c.condition("Registered", "True", "")
	c.condition("Initialized", "True", "")
}

// now is the claim as it is, or nil.
func (c *cluster) now() *unstructured.Unstructured {
	c.t.Helper()
	synctest.Wait()
	u, err := c.Tracker().Get(nodeClaimResource, "", claimName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return u.(*unstructured.Unstructured)
}

// land puts pods on the replacement.
func (f *fakeNodes) land(pods ...*corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range pods {
		f.pods = append(f.pods, *p)
	}
}

// fail has patches and lists of pods fail from now on, or succeed.
func (f *fakeNodes) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = err
}

func (f *fakeNodes) hasEvent(reason string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.events, "NodeClaim/"+claimName+" "+reason)
}

// keeping is a cluster whose fallback pool is as changed, with a claim that is Ready.
func keeping(t *testing.T, opts Options, change ...func(*unstructured.Unstructured)) (*cluster, *interruption.Record) {
	t.Helper()
	c, rec := newCluster(t, opts, sourcePool(), fallbackPool(t, change...), sourceNodeClaim()), record()
	c.nodes.put(withRecord(interruptedNode(), rec))
	c.request(&rec)
	c.request(&rec)
	c.ready()
	return c, &rec
}
