package handler

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"spot-handler/drain/plan"
	"spot-handler/e2e/patched"
	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/turns"
	"spot-handler/handler/workloads"
)

var nodesResource = schema.GroupResource{Resource: "nodes"}

// fakeNodes is the Nodes API with what the handler relies on: resourceVersions, conflicts and
// patches. The stories have the real API server's.
type fakeNodes struct {
	mu      sync.Mutex
	byName  map[string]*corev1.Node
	version int
	watcher *watch.FakeWatcher
	patches int
	written int // conditions, which the watch does not bring back

	refuseStatus error // what patches of the status are answered, except of conditions alone

	beforePatch func() // lets somebody else get there first, once
	fails       error  // what the next patch is answered, except of conditions alone
}

var (
	_ Nodes        = (*fakeNodes)(nil)
	_ nodes.Client = (*fakeNodes)(nil)
)

func newFakeNodes(list ...*corev1.Node) *fakeNodes {
	f := &fakeNodes{byName: map[string]*corev1.Node{}, watcher: watch.NewFakeWithChanSize(100, false)}
	for _, n := range list {
		f.put(n)
	}
	return f
}

func (f *fakeNodes) put(n *corev1.Node) {
	f.version++
	n.ResourceVersion = strconv.Itoa(f.version)
	f.byName[n.Name] = n
}

// change plays somebody else changing the tests' Node.
func (f *fakeNodes) change(change func(*corev1.Node)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.byName["node-a"].DeepCopy()
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	change(n)
	f.put(n)
	f.watcher.Modify(n.DeepCopy())
}

// remove plays somebody deleting a Node.
func (f *fakeNodes) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.byName[name]
	delete(f.byName, name)
	f.watcher.Delete(n)
}

// raw reads the tests' Node, and whether it has a record.
func (f *fakeNodes) raw(t *testing.T) (*corev1.Node, bool) {
	t.Helper()
	n, err := f.Get(t.Context(), "node-a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, has := n.Annotations[interruption.Annotation]
	return n, has
}

func (f *fakeNodes) List(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(f.version)}}
	for _, n := range f.byName {
		list.Items = append(list.Items, *n.DeepCopy())
	}
	return list, nil
}

func (f *fakeNodes) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "", nil) // as an old server: list instead
	}
	return f.watcher, nil
}

func (f *fakeNodes) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok := f.byName[name]
	if !ok {
		return nil, apierrors.NewNotFound(nodesResource, name)
	}
	return n.DeepCopy(), nil
}

func (f *fakeNodes) Mark(ctx context.Context, name string, kind types.PatchType, data []byte) error {
	_, err := f.Patch(ctx, name, kind, data, metav1.PatchOptions{})
	return err
}

func (f *fakeNodes) Patch(_ context.Context, name string, kind types.PatchType, data []byte, _ metav1.PatchOptions, sub ...string) (*corev1.Node, error) {
	if len(sub) > 0 && kind == types.StrategicMergePatchType {
		return f.condition(name)
	}
	if len(sub) > 0 && f.refuseStatus != nil {
		return nil, f.refuseStatus
	}
	if before := f.beforePatch; before != nil {
		f.beforePatch = nil
		before()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.patches++
	if err := f.fails; err != nil {
		f.fails = nil
		return nil, err
	}
	n, ok := f.byName[name]
	if !ok {
		return nil, apierrors.NewNotFound(nodesResource, name)
	}
	if kind == types.MergePatchType {
		var meta struct {
			Metadata struct{ ResourceVersion string }
		}
		if err := json.Unmarshal(data, &meta); err != nil {
			return nil, err
		}
		if v := meta.Metadata.ResourceVersion; v != "" && v != n.ResourceVersion {
			return nil, apierrors.NewConflict(nodesResource, name, errors.New("changed"))
		}
	}
	after, err := patched.Node(n, kind, data)
	switch {
	case err != nil && kind == types.JSONPatchType:
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, name, nil)
	case err != nil:
		return nil, err
	}
	f.put(after)
	f.watcher.Modify(after.DeepCopy())
	return after.DeepCopy(), nil
}

func (f *fakeNodes) condition(name string) (*corev1.Node, error) {
	node, err := f.Get(context.Background(), name, metav1.GetOptions{})
	if err == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.written++
		f.version++
		node.ResourceVersion = strconv.Itoa(f.version)
	}
	return node, err
}

// fakeDrainer is a Drainer of func fields, by what was set for a node last.
type fakeDrainer struct {
	LookFunc   func(node string, in plan.NodeState) (plan.View, bool)
	DrainFunc  func(node string, in plan.NodeState) (plan.Status, bool)
	CancelFunc func(node string) *plan.Canceled
	// ResultFunc is what would have become of the node's pods if it ended now; nil: there are none.
	ResultFunc func(node string) interruption.Pods

	RunFunc func(ctx context.Context) error // nil: until ctx ends

	// RemoveFunc is called when a node is removed that was being looked at or drained; it can be nil.
	RemoveFunc func(node string)

	mu     sync.Mutex
	wanted map[string]plan.Wanted
}

var _ Drainer = (*fakeDrainer)(nil)

func (f *fakeDrainer) Run(ctx context.Context) error {
	if f.RunFunc != nil {
		return f.RunFunc(ctx)
	}
	<-ctx.Done()
	return nil
}

func (f *fakeDrainer) Set(node string, want plan.Wanted) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wanted == nil {
		f.wanted = map[string]plan.Wanted{}
	}
	if was, ok := f.wanted[node]; !ok || want.Goal >= was.Goal {
		f.wanted[node] = want
	}
}

func (f *fakeDrainer) Status(_ context.Context, node string) (status plan.Status, known bool) {
	f.mu.Lock()
	want, ok := f.wanted[node]
	f.mu.Unlock()
	if !ok {
		return plan.Status{}, false
	}
	switch want.Goal {
	case plan.Cancel:
		return plan.Status{Canceled: f.CancelFunc(node)}, true
	case plan.Look:
		status.View, known = f.LookFunc(node, want.NodeState)
	default:
		status, known = f.DrainFunc(node, want.NodeState)
		if f.LookFunc != nil && status.Moving == nil {
			status.View, _ = f.LookFunc(node, want.NodeState)
		}
	}
	if f.ResultFunc != nil {
		status.Pods = f.ResultFunc(node)
	}
	return status, known
}

func (f *fakeDrainer) Remove(node string) {
	f.mu.Lock()
	want, known := f.wanted[node]
	delete(f.wanted, node)
	f.mu.Unlock()
	if known && want.Goal != plan.Cancel && f.RemoveFunc != nil {
		f.RemoveFunc(node)
	}
}

// fakeProvisioner is a Provisioner of func fields.
type fakeProvisioner struct {
	RequestFunc func(rec interruption.Record) (interruption.Replacement, error)
	ReleaseFunc func(rec interruption.Record) error
	RunFunc     func(ctx context.Context) error // nil: until ctx ends
	forgotten   []string
}

var _ Provisioner = (*fakeProvisioner)(nil)

func (f *fakeProvisioner) Run(ctx context.Context) error {
	if f.RunFunc != nil {
		return f.RunFunc(ctx)
	}
	<-ctx.Done()
	return nil
}

func (f *fakeProvisioner) Request(_ context.Context, _ *corev1.Node, rec interruption.Record, _ provisioner.Need) (interruption.Replacement, error) {
	return f.RequestFunc(rec)
}

func (f *fakeProvisioner) Terminate(_ context.Context, _ *corev1.Node, rec interruption.Record) error {
	return f.ReleaseFunc(rec)
}

func (f *fakeProvisioner) Forget(node string) { f.forgotten = append(f.forgotten, node) }

// fakeEvents drops everything.
type fakeEvents struct{}

func (fakeEvents) Notify(notify.News) {}

// setup is what a test sets: the handler's options, and those of what it works with.
type setup struct {
	Options
	rules     rules
	lifecycle lifecycle.TenderOptions
	atOnce    turns.Concurrency
}

// rules are an operator's.
type rules struct {
	rebalance interruption.RebalancePolicy
	lead      time.Duration
	pool      func() (interruption.RebalancePolicy, error) // what the NodePool says; nil: nothing
}

// of is as Options.Rules.
func (r *rules) of(_ *corev1.Node, recommended bool) (interruption.Rules, error) {
	out := interruption.Rules{Rebalance: r.rebalance, ScheduledLead: r.lead}
	if !recommended || r.pool == nil {
		return out, nil
	}
	policy, err := r.pool()
	out.Rebalance = cmp.Or(policy, r.rebalance)
	return out, err
}

// newTestHandler returns a handler over the fakes. The test works off its queue, instead of
// Run.
func newTestHandler(t *testing.T, f *fakeNodes, change func(*setup)) *Handler {
	t.Helper()
	h := newStandby(t, f, change)
	h.opts.Index.OnChange(h.Enqueue)
	return h
}

// newStandby returns a handler that does not run, with its index running and synced.
func newStandby(t *testing.T, f *fakeNodes, change func(*setup)) *Handler {
	t.Helper()
	index := nodes.New(f, "", zerolog.Nop())
	o := &setup{
		Options: Options{
			Nodes: f, Index: index, Events: fakeEvents{}, Workloads: workloads.New(workloads.Options{}), Offerings: offerings.New(), ReleaseNode: true,
			PodLeft:    func(string, *corev1.Pod, string) {},
			Registerer: prometheus.NewRegistry(), Logger: zerolog.New(t.Output()),
		},
		rules: rules{rebalance: interruption.RebalanceReplace},
	}
	o.Rules = o.rules.of
	if change != nil {
		change(o)
	}
	var h *Handler
	enqueue := func(node string) { h.Enqueue(node) }
	o.Turns = turns.NewLine(o.atOnce, index.PoolSize, enqueue)
	o.lifecycle.CordonOnly, o.lifecycle.Logger, o.lifecycle.Notify = o.CordonOnly, o.Logger, enqueue
	o.Hooks = lifecycle.NewTender(o.lifecycle)
	h = New(o.Options)
	t.Cleanup(h.queue.ShutDown)
	go func() { _ = index.Run(t.Context()) }()
	if err := index.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

// shownNews writes down the news of notices and ends.
type shownNews struct{ shown []string }

func (e *shownNews) Notify(n notify.News) {
	switch {
	case n.Stage == notify.Notice:
		e.shown = append(e.shown, "noticed "+string(n.Record.Kind))
	case n.Stage == notify.Outcome && n.Record.Instance != instance:
		e.shown = append(e.shown, n.Reason+" of nobody")
	case n.Stage == notify.Outcome && n.Reason != notify.ReasonCanceled && n.Reason != notify.ReasonInstanceReturned && n.Reason != notify.ReasonRehearsalOver:
		e.shown = append(e.shown, n.Reason)
	}
}
