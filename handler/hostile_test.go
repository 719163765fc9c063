package handler

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// slowHooks answers eight calls at a time, as lifecycle.Client makes them, in a tenth of a second
// each. It knows no group that a kubelet has invented.
type slowHooks struct {
	slots *semaphore.Weighted

	mu        sync.Mutex
	calls     int // about invented groups
	completed map[string]time.Time
}

var _ lifecycle.Hooks = (*slowHooks)(nil)

func (f *slowHooks) call(ctx context.Context, h interruption.Hook) error {
	if err := f.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer f.slots.Release(1)
	time.Sleep(100 * time.Millisecond)
	if !strings.HasPrefix(h.Group, "invented") {
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	return errors.New("throttled")
}

func (f *slowHooks) Limits(ctx context.Context, h interruption.Hook) (lifecycle.Limits, error) {
	return lifecycle.LimitsOf(2 * time.Minute), f.call(ctx, h)
}

func (f *slowHooks) Heartbeat(ctx context.Context, _ string, h interruption.Hook) error {
	return f.call(ctx, h)
}

func (f *slowHooks) Complete(ctx context.Context, _, instance string, h interruption.Hook) error {
	if err := f.call(ctx, h); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.completed[instance] = time.Now()
	return nil
}

// A kubelet may write the record of its Node as often as the API server lets it, with hooks of groups
// that do not exist. That costs the leader next to nothing, and other nodes' hooks no time.
func TestHostileRecords(t *testing.T) {
	hostile := func(i, hooks int, phase interruption.Phase) string {
		rec := interruption.NewRecord(notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.Action = interruption.ActionStop }))
		rec.Phase = phase
		for j := range hooks {
			rec.Hooks = append(rec.Hooks, interruption.Hook{Group: fmt.Sprintf("invented-%d-%d", i, j), Name: "h", Since: time.Now(), Until: time.Now().Add(48 * time.Hour)})
		}
		return rec.String()
	}
	for name, record := range map[string]func(i int) string{
		"150 hooks to complete":    func(i int) string { return hostile(i, 150, interruption.Drained) },
		"8 hooks to complete":      func(i int) string { return hostile(i, 8, interruption.Drained) },
		"8 hooks to prolong":       func(i int) string { return hostile(i, 8, interruption.Draining) },
		"8 hooks, and back to 150": func(i int) string { return hostile(i, 8+142*(i%2), interruption.Drained) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const friend = "i-0fedcba9876543210"
				f := newFakeNodes(testNode(), testNode(func(n *corev1.Node) {
					n.Name, n.Spec.ProviderID = "node-b", "aws:///eu-west-1a/"+friend
				}))
				hooks := &slowHooks{slots: semaphore.NewWeighted(8), completed: map[string]time.Time{}}
				s := &script{state: provisioner.StateUnsupported, begun: true}
				h := newTestHandler(t, f, func(o *setup) {
					s.options(o)
					o.lifecycle = lifecycle.TenderOptions{Hooks: hooks, HeartbeatUntil: time.Hour}
				})
				runs(t, h)
				defer f.watcher.Stop()
				synctest.Wait() // until its workers are there
				goroutines, heap := runtime.NumGoroutine(), heapInUse()
				var sent time.Time
				for i := range 400 {
					f.change(func(n *corev1.Node) {
						n.Annotations = map[string]string{interruption.Annotation: record(i)}
					})
					if i == 300 {
						sent = time.Now()
						n := hooked("drain")
						n.InstanceID = friend
						accept(t, h, n)
					}
					time.Sleep(50 * time.Millisecond)
				}
				synctest.Wait()
				if more := heapInUse() - heap; more > 64<<20 {
					t.Errorf("%d MiB more, want less than 64", more>>20)
				}
				if more := runtime.NumGoroutine() - goroutines; more > 40 {
					t.Errorf("%d goroutines more, want at most 40", more)
				}
				time.Sleep(time.Second)
				hooks.mu.Lock()
				defer hooks.mu.Unlock()
				if hooks.calls > 16+12 {
					t.Errorf("%d calls about invented groups in 21 s, want at most 16 and one every 2 s", hooks.calls)
				}
				if took := hooks.completed[friend].Sub(sent); took > 500*time.Millisecond || took < 0 {
					t.Errorf("another node's hook is completed after %s, want 0.2 s for reading its limits and completing it", took)
				}
				if rec, err := nodes.Record(f.byName["node-b"]); err != nil || !rec.Phase.Over() {
					t.Errorf("another node's drain: %v %v", rec, err)
				}
			})
		})
	}
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
