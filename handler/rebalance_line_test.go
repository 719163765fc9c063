package handler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/turns"
)

// fleet is a pool of recommended nodes, whose drains last until the test lets them end.
type fleet struct {
	*fakeNodes
	h        *Handler
	done     map[string]bool
	requests map[string]int
}

func fleetNode(i int, pool string) *corev1.Node {
	return testNode(func(n *corev1.Node) {
		n.Name = fmt.Sprintf("%s-%02d", pool, i)
		n.Spec.ProviderID = "aws:///eu-west-1a/" + fleetInstance(i, pool)
		n.Labels = map[string]string{"karpenter.sh/nodepool": pool}
	})
}

func fleetInstance(i int, pool string) string { return fmt.Sprintf("i-%s-%02d", pool, i) }

func newFleet(t *testing.T, size int, change func(*setup)) *fleet {
	var list []*corev1.Node
	for i := range size {
		list = append(list, fleetNode(i, "a"))
	}
	f := &fleet{fakeNodes: newFakeNodes(list...), done: map[string]bool{}, requests: map[string]int{}}
	f.h = newTestHandler(t, f.fakeNodes, func(o *setup) {
		o.RebalanceTTL = time.Hour
		moving := []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}
		o.Drainer = &fakeDrainer{
			LookFunc: func(string, plan.NodeState) (plan.View, bool) { return plan.View{Moving: moving}, true },
			DrainFunc: func(node string, _ plan.NodeState) (plan.Status, bool) {
				return plan.Status{Total: 1, Begun: true, Done: f.done[node]}, true
			},
			ResultFunc: func(string) interruption.Pods { return interruption.Pods{Total: 1, Graceful: 1} },
			CancelFunc: func(string) *plan.Canceled { return &plan.Canceled{} },
		}
		o.Provisioner = &fakeProvisioner{
			RequestFunc: func(rec interruption.Record) (interruption.Replacement, error) {
				f.requests[rec.Instance]++
				return interruption.Replacement{Backend: "karpenter", Name: "for-" + rec.Instance, State: provisioner.StateReady}, nil
			},
			ReleaseFunc: func(interruption.Record) error { return nil },
		}
		if change != nil {
			change(o)
		}
	})
	f.h.running.Store(true)
	return f
}

// run reconciles until the queue is empty.
func (f *fleet) run(t *testing.T) {
	t.Helper()
	for {
		synctest.Wait()
		if f.h.queue.Len() == 0 {
			return
		}
		name, _ := f.h.queue.Get()
		_, err := f.h.reconcile(t.Context(), name)
		f.h.queue.Done(name)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (f *fleet) recommend(t *testing.T, i int) {
	t.Helper()
	accept(t, f.h, notice(interruption.RebalanceRecommendation, func(n *interruption.Notice) {
		n.InstanceID, n.EventID, n.Received = fleetInstance(i, "a"), fmt.Sprint("event-", i), time.Now()
	}))
}

// state is how many nodes wait, are under way and are over; it fails if a waiting node is
// marked.
func (f *fleet) state(t *testing.T) (waiting, underWay, over int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.byName {
		rec, err := nodes.Record(n)
		switch {
		case errors.Is(err, nodes.ErrNoRecord):
		case err != nil:
			t.Fatal(err)
		case rec.Phase == interruption.Waiting:
			waiting++
			if n.Spec.Unschedulable || len(n.Spec.Taints) > 0 || len(rec.Ours) > 0 {
				t.Errorf("%s waits and is marked: %s", n.Name, rec)
			}
		case rec.Phase.Over():
			over++
		default:
			underWay++
			if !n.Spec.Unschedulable {
				t.Errorf("%s is under way and not cordoned: %s", n.Name, rec)
			}
		}
	}
	return waiting, underWay, over
}

func (f *fleet) want(t *testing.T, waiting, underWay, over int) {
	t.Helper()
	f.run(t)
	if w, u, o := f.state(t); w != waiting || u != underWay || o != over {
		t.Fatalf("%d wait, %d under way, %d over; want %d, %d, %d", w, u, o, waiting, underWay, over)
	}
}

// Twelve nodes of a pool of 24 are recommended at once, and 10% may be replaced at a time: two.
// As one is done the next begins at once, in the order of the recommendations.
func TestRebalancesStandInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 24, func(o *setup) { o.atOnce, _ = turns.ParseConcurrency("10%") })
		defer f.watcher.Stop()
		for i := range 12 {
			f.recommend(t, i)
			time.Sleep(time.Millisecond)
		}
		f.want(t, 10, 2, 0)
		for i := range 12 {
			name := fmt.Sprintf("a-%02d", i)
			if f.requests[fleetInstance(i, "a")] == 0 {
				t.Fatalf("%s is not under way in its turn", name)
			}
			f.done[name] = true
			f.h.Enqueue(name)
			f.want(t, max(0, 10-i-1), min(2, 12-i-1), i+1)
		}
	})
}

// Once its scheduled event is due, a node is drained without waiting, and another of its pool has the turn.
func TestDueNodeLeavesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 5, func(o *setup) { o.rules.lead = 10 * time.Minute })
		defer f.watcher.Stop()
		for i := range 2 {
			f.recommend(t, i)
			time.Sleep(time.Millisecond)
		}
		accept(t, f.h, notice(interruption.ScheduledEvent, func(n *interruption.Notice) {
			n.InstanceID, n.EventID, n.Deadline = fleetInstance(0, "a"), "scheduled", time.Now().Add(20*time.Minute)
		}))
		f.want(t, 1, 1, 0)
		time.Sleep(11 * time.Minute)
		f.h.Enqueue("a-00")
		f.want(t, 0, 2, 0)
	})
}

// A node whose record nobody can read any more has no place in line: in a pool of five no other
// would ever have its turn.
func TestUnreadableRecordLeavesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 5, nil)
		defer f.watcher.Stop()
		for i := range 2 {
			f.recommend(t, i)
			time.Sleep(time.Millisecond)
		}
		f.want(t, 1, 1, 0)
		f.mu.Lock()
		broken := f.byName["a-00"].DeepCopy()
		broken.Annotations[interruption.Annotation] = "{"
		f.put(broken)
		f.watcher.Modify(broken.DeepCopy())
		f.mu.Unlock()
		f.h.Enqueue("a-00")
		f.run(t)
		f.mu.Lock()
		defer f.mu.Unlock()
		if next, err := nodes.Record(f.byName["a-01"]); err != nil || next.Phase == interruption.Waiting {
			t.Errorf("%+v, %v; want the next node's turn", next, err)
		}
	})
}

// The next process that takes over in the middle of the line carries on with those that have begun,
// and begins no other, whichever node it happens to look at first.
func TestNextLeaderKeepsTheLine(t *testing.T) {
	for range 10 { // its workers begin in any order
		synctest.Test(t, nextLeader)
	}
}

func nextLeader(t *testing.T) {
	f := newFleet(t, 6, nil)
	defer f.watcher.Stop()
	for i := range 6 {
		f.recommend(t, 5-i)
		time.Sleep(time.Millisecond)
	}
	f.want(t, 5, 1, 0)
	f.h.queue.ShutDown()

	next := newStandby(t, f.fakeNodes, func(o *setup) {
		o.RebalanceTTL, o.Drainer, o.Provisioner = time.Hour, f.h.opts.Drainer, f.h.opts.Provisioner
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- next.Run(ctx) }()
	time.Sleep(time.Minute)
	synctest.Wait()
	if waiting, underWay, over := f.state(t); waiting != 5 || underWay != 1 || over != 0 {
		t.Errorf("%d wait, %d under way, %d over; want 5, 1, 0", waiting, underWay, over)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A node that leaves the line gives its place to the next: one that is gone, one that somebody
// has cancelled, and one that has received a notice. The notice does not wait in line.
func TestNoticeGoesOutOfLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 5, nil)
		defer f.watcher.Stop()
		for i := range 5 {
			f.recommend(t, i)
			time.Sleep(time.Millisecond)
		}
		f.want(t, 4, 1, 0)
		interrupt := func(i int) {
			accept(t, f.h, notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.InstanceID = fleetInstance(i, "a") }))
		}
		interrupt(3) // waits: begins at once, alongside the first
		f.want(t, 3, 2, 0)
		interrupt(0) // under way: its place is free
		f.want(t, 2, 3, 0)

		f.mu.Lock()
		gone := f.byName["a-01"]
		delete(f.byName, "a-01")
		f.watcher.Delete(gone)
		f.mu.Unlock()
		f.want(t, 1, 3, 0)

		f.mu.Lock()
		off := f.byName["a-02"].DeepCopy()
		off.Annotations[interruption.CancelAnnotation] = "true"
		f.put(off)
		f.watcher.Modify(off.DeepCopy())
		f.mu.Unlock()
		f.want(t, 0, 3, 0)
	})
}

// A turn that could not be written is kept, and goes to nobody else.
func TestTurnOutlivesAFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		defer f.watcher.Stop()
		f.recommend(t, 0)
		f.recommend(t, 1)
		synctest.Wait()
		f.beforePatch = func() { // somebody changes the Node just then
			f.mu.Lock()
			defer f.mu.Unlock()
			f.put(f.byName["a-00"].DeepCopy())
		}
		if _, err := f.h.reconcile(t.Context(), "a-00"); err != nil {
			t.Fatal(err)
		}
		f.h.Enqueue("a-01")
		f.want(t, 2, 0, 0)
		f.mu.Lock()
		f.watcher.Modify(f.byName["a-00"].DeepCopy())
		f.mu.Unlock()
		f.want(t, 1, 1, 0)
	})
}

// A pod with a grace period of 12 hours is leaving: its node gives its pool's only turn to the next after a
// quarter of the TTL, and is not undone before the pod has gone.
func TestTurnIsNotKeptForALongGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		defer f.watcher.Stop()
		leaves := time.Now().Add(12 * time.Hour)
		f.h.opts.Drainer.(*fakeDrainer).DrainFunc = func(string, plan.NodeState) (plan.Status, bool) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "game", DeletionTimestamp: &metav1.Time{Time: leaves}}}
			return plan.Status{View: plan.View{Moving: []*corev1.Pod{pod}}, Total: 1, Begun: true}, true
		}
		f.recommend(t, 0)
		f.run(t)
		time.Sleep(time.Second)
		f.recommend(t, 1)
		phases := func(after time.Duration) (first, second interruption.Record) {
			for until := time.Now().Add(after); time.Now().Before(until); time.Sleep(time.Minute) {
				f.h.Enqueue("a-00")
				f.h.Enqueue("a-01")
				f.run(t)
			}
			first, _ = nodes.Record(f.byName["a-00"])
			second, _ = nodes.Record(f.byName["a-01"])
			return first, second
		}
		if first, second := phases(14 * time.Minute); first.Phase != interruption.Draining || second.Phase != interruption.Waiting {
			t.Fatalf("after 14 minutes: %s, %s; want the first to have the turn", first, second)
		}
		if first, second := phases(5 * time.Minute); first.Phase != interruption.Draining || second.Phase != interruption.Draining {
			t.Fatalf("after a quarter of the TTL: %s, %s; want both under way", first, second)
		}
		if first, _ := phases(11 * time.Hour); first.Phase != interruption.Draining {
			t.Fatalf("after 11 hours: %s, want that it waits for its pod", first)
		}
		if first, _ := phases(2*time.Hour + 5*time.Minute); first.Phase != "" {
			t.Errorf("an hour after the pod had to have left: %s, want it undone", first)
		}
	})
}
