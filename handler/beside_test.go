package handler

import (
	"bytes"
	"cmp"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// slowNodes take so long for each write; an hour is one that hangs.
type slowNodes struct {
	*fakeNodes
	mu    sync.Mutex
	takes time.Duration
	err   error
}

func (s *slowNodes) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *slowNodes) set(takes time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes = takes
}

func (s *slowNodes) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, o metav1.PatchOptions, sub ...string) (*corev1.Node, error) {
	s.mu.Lock()
	takes, err := s.takes, s.err
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(takes):
	}
	return s.fakeNodes.Patch(ctx, name, kind, data, o, sub...)
}

// 300 nodes are lost at once while the API server takes long for each write of a Node. No node's first
// plan, nor any later one, waits for it.
func TestNoDrainWaitsForWrites(t *testing.T) {
	const lost = 300
	for _, takes := range []time.Duration{10 * time.Millisecond, 3 * time.Second, time.Hour} {
		t.Run(takes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var list []*corev1.Node
				for i := range lost {
					list = append(list, testNode(func(n *corev1.Node) {
						n.Name, n.Spec.ProviderID = fmt.Sprintf("n-%03d", i), fmt.Sprintf("aws:///eu-west-1a/i-%08x", i)
					}))
				}
				f := newFakeNodes(list...)
				defer f.watcher.Stop()
				slow, plans := &slowNodes{fakeNodes: f}, &plansOf{last: map[string]time.Time{}, first: map[string]time.Time{}}
				h := newTestHandler(t, f, func(o *setup) { o.Nodes, o.Drainer, o.Provisioner = slow, plans.drainer(), requested() })
				for i := range lost {
					accept(t, h, notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.InstanceID = fmt.Sprintf("i-%08x", i) }))
				}
				synctest.Wait()
				start := time.Now()
				slow.set(takes)
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); _ = h.Run(ctx) }()
				time.Sleep(time.Second)
				if n := plans.since(plans.first, start); n != lost {
					t.Errorf("the first plans of %d nodes were carried out within a second, want %d", n, lost)
				}
				time.Sleep(5 * time.Second)
				again := time.Now()
				for i := range lost {
					h.Enqueue(fmt.Sprintf("n-%03d", i))
				}
				time.Sleep(time.Second)
				if n := plans.since(plans.last, again); takes > time.Second && n != lost {
					t.Errorf("%d nodes were planned again while their records were being written, want %d", n, lost)
				}
				slow.set(0)
				time.Sleep(time.Minute)
				for name := range plans.first {
					node, _ := f.Get(t.Context(), name, metav1.GetOptions{})
					rec, err := interruption.ParseRecord(node.Annotations[interruption.Annotation])
					if err != nil || rec.Phase != interruption.Replacing || rec.Pods == nil || rec.Pods.Total != 1 {
						t.Fatalf("record %s, %v; want that its drain is under way with one pod", rec, err)
					}
				}
				stop()
				<-done
			})
		})
	}
}

// unread is a Nodes whose Get always fails, so a new leader can't read any Node from etcd.
type unread struct{ Nodes }

func (unread) Get(context.Context, string, metav1.GetOptions) (*corev1.Node, error) {
	return nil, errors.New("etcdserver: request timed out")
}

// Another process has changed the record, and the watch hasn't shown that yet: the record is written once with the
// conditions and, as that is refused, once without, and then not again until the watch has caught up.
func TestNoWriteIsRepeatedForAnOutdatedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNodes(testNode(func(*corev1.Node) {}))
		defer f.watcher.Stop()
		plans := &plansOf{last: map[string]time.Time{}, first: map[string]time.Time{}}
		var log bytes.Buffer
		h := newTestHandler(t, f, func(o *setup) {
			o.Nodes, o.Drainer, o.Provisioner = unread{&slowNodes{fakeNodes: f, takes: time.Millisecond}}, plans.drainer(), requested()
			o.Logger = zerolog.New(&log)
		})
		accept(t, h, notice(interruption.SpotInterruption))
		synctest.Wait()
		f.mu.Lock()
		node := f.byName["node-a"].DeepCopy()
		rec, err := nodes.Record(node)
		if err != nil {
			t.Fatal(err)
		}
		rec.Deadline = rec.Deadline.Add(-3 * time.Second) // as the other source's notice says
		node.Annotations[interruption.Annotation] = rec.String()
		f.put(node)
		before := f.patches
		f.mu.Unlock()

		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = h.Run(ctx) }()
		for range 20 { // as changes of its pods have it planned again
			time.Sleep(100 * time.Millisecond)
			h.Enqueue("node-a")
		}
		synctest.Wait()
		f.mu.Lock()
		if n := f.patches - before; n != 2 {
			t.Errorf("%d writes for a Node that is outdated, want one with the conditions and one without", n)
		}
		f.watcher.Modify(f.byName["node-a"].DeepCopy())
		f.mu.Unlock()
		time.Sleep(time.Second)
		if _, rec := f.now(t); rec.Phase != interruption.Replacing {
			t.Errorf("phase %s after the watch has caught up, want %s", rec.Phase, interruption.Replacing)
		}
		stop()
		<-done
		if strings.Contains(log.String(), "write record") {
			t.Errorf("what the watch will show is logged as an error: %s", &log)
		}
	})
}

// A write that fails is logged and made again. Until one succeeds, the process itself knows which replacement it has
// requested.
func TestFailedWriteOfTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNodes(testNode())
		defer f.watcher.Stop()
		plans := &plansOf{last: map[string]time.Time{}, first: map[string]time.Time{}}
		var log bytes.Buffer
		var asked []string
		failing := &slowNodes{fakeNodes: f}
		h := newTestHandler(t, f, func(o *setup) {
			o.Nodes, o.Drainer, o.Logger = failing, plans.drainer(), zerolog.New(&log)
			provider := requested()
			request := provider.RequestFunc
			provider.RequestFunc = func(rec interruption.Record) (interruption.Replacement, error) {
				asked = append(asked, cmp.Or(rec.Replacement, &interruption.Replacement{}).Name)
				return request(rec)
			}
			o.Provisioner = provider
		})
		accept(t, h, notice(interruption.SpotInterruption))
		synctest.Wait()
		failing.fail(errors.New("API server is unreachable"))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = h.Run(ctx) }()
		time.Sleep(10 * time.Second)
		logged := strings.Count(log.String(), "write record")
		if logged != 6 { // once for 0, 0.05 and 0.15 s together, and once each at 0.35, 0.75, 1.55, 3.15 and 6.35 s
			t.Errorf("failed writes were logged %d times in 10 s, want 6: %s", logged, &log)
		}
		if want := append([]string{""}, slices.Repeat([]string{"x"}, len(asked)-1)...); !slices.Equal(asked, want) {
			t.Errorf("asked for %q", asked)
		}
		failing.fail(nil)
		time.Sleep(10 * time.Second)
		wantPhase(t, f, interruption.Replacing)
		stop()
		<-done
	})
}

// A failed write is retried without waiting for the provisioner to answer.
func TestFailedWriteWaitsForNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNodes(testNode())
		defer f.watcher.Stop()
		plans := &plansOf{last: map[string]time.Time{}, first: map[string]time.Time{}}
		failing, answers := &slowNodes{fakeNodes: f}, 0
		h := newTestHandler(t, f, func(o *setup) {
			o.Nodes, o.Drainer = failing, plans.drainer()
			provider := requested()
			request := provider.RequestFunc
			provider.RequestFunc = func(rec interruption.Record) (interruption.Replacement, error) {
				if answers++; answers > 1 {
					time.Sleep(5 * time.Second)
				}
				return request(rec)
			}
			o.Provisioner = provider
		})
		accept(t, h, notice(interruption.SpotInterruption))
		synctest.Wait()
		failing.fail(errors.New("etcdserver: leader changed"))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = h.Run(ctx) }()
		time.Sleep(firstRetry / 2)
		failing.fail(nil)
		time.Sleep(firstRetry)
		wantPhase(t, f, interruption.Replacing)
		stop()
		<-done
	})
}

// requested is a provisioner whose replacements boot.
func requested() *fakeProvisioner {
	return &fakeProvisioner{
		RequestFunc: func(interruption.Record) (interruption.Replacement, error) {
			return interruption.Replacement{Backend: "karpenter", Name: "x", State: provisioner.StateRequested}, nil
		},
		ReleaseFunc: func(interruption.Record) error { return nil },
	}
}

// plansOf is when the plans of nodes with one pod were carried out.
type plansOf struct {
	mu          sync.Mutex
	first, last map[string]time.Time
}

func (p *plansOf) drainer() *fakeDrainer {
	view := plan.View{Moving: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}}
	return &fakeDrainer{
		LookFunc: func(string, plan.NodeState) (plan.View, bool) { return view, true },
		DrainFunc: func(node string, _ plan.NodeState) (plan.Status, bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.last[node] = time.Now(); p.first[node].IsZero() {
				p.first[node] = time.Now()
			}
			return plan.Status{View: view, Total: 1}, true
		},
		ResultFunc: func(string) interruption.Pods { return interruption.Pods{} },
	}
}

func (p *plansOf) since(times map[string]time.Time, start time.Time) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range times {
		if !at.Before(start) {
			n++
		}
	}
	return n
}

// hungNodes answers nothing.
type hungNodes struct{}

func (hungNodes) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*corev1.Node, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hungNodes) Patch(ctx context.Context, _ string, _ types.PatchType, _ []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Node, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hungNodes) Mark(ctx context.Context, _ string, _ types.PatchType, _ []byte) error {
	<-ctx.Done()
	return ctx.Err()
}

// A request about a Node that hangs is given up after ten seconds, whatever the handler makes it for.
func TestRequestsAboutNodesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Options{Nodes: hungNodes{}, Registerer: prometheus.NewRegistry()})
		defer h.queue.ShutDown()
		nodes := h.opts.Nodes
		for name, request := range map[string]func(context.Context) error{
			"get": func(ctx context.Context) error { _, err := nodes.Get(ctx, "node-a", metav1.GetOptions{}); return err },
			"patch": func(ctx context.Context) error {
				_, err := nodes.Patch(ctx, "node-a", "", nil, metav1.PatchOptions{})
				return err
			},
			"mark": func(ctx context.Context) error { return nodes.Mark(ctx, "node-a", "", nil) },
		} {
			start := time.Now()
			if err := request(t.Context()); err == nil || time.Since(start) != 10*time.Second {
				t.Errorf("%s: %v after %s, want an error after 10 s", name, err, time.Since(start))
			}
		}
	})
}
