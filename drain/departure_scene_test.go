package drain

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
)

// drainToo drains another node, with so much time left, until the end of the test.
func (s *scene) drainToo(node string, left time.Duration) {
	in := plan.NodeState{Taint: taint, Deadline: time.Now().Add(left), Capacity: plan.PendingCapacity}
	go func() {
		for {
			s.drain(node, in)
			select {
			case <-s.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	s.pass(time.Second)
}

// gangOnTwoNodes is a gang of two on each of two nodes, and a pod of no gang on the second.
func gangOnTwoNodes(f *fakeAPI) {
	f.pod(pod("a", withGrace(30), inGang))
	f.pod(pod("b", withGrace(30), inGang))
	f.pod(pod("c", withGrace(30), inGang, onNode("node-b")))
	f.pod(pod("d", withGrace(30), inGang, onNode("node-b")))
	f.pod(pod("e", withGrace(30), onNode("node-b")))
}

func (s *scene) evictedPods() string {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	var names []string
	for _, r := range s.api.requests {
		if path, ok := strings.CutSuffix(r, "/eviction"); ok {
			names = append(names, path[strings.LastIndexByte(path, '/')+1:])
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}

// The node that goes first decides for the pods of the gang on the other; if its interruption is
// cancelled, it does not.
func TestGangOnTwoNodes(t *testing.T) {
	stage(t, holding, 4*time.Minute, plan.ReadyCapacity, gangOnTwoNodes, func(s *scene) {
		if got := s.now().Next.Sub(s.start); got != 200*time.Second {
			t.Fatalf("leaves after %s, want its own eviction deadline", got)
		}
		s.drainToo("node-b", 2*time.Minute) // one second after the start
		if got := s.now().Next.Sub(s.start); got != 81*time.Second {
			t.Fatalf("leaves after %s, want the other node's eviction deadline", got)
		}
		s.until(81*time.Second - time.Millisecond)
		if got := s.evictedPods(); got != "" {
			t.Fatalf("evicted %s before that", got)
		}
		s.until(81*time.Second + 100*time.Millisecond)
		if got := s.evictedPods(); got != "a b c d e" {
			t.Errorf("evicted %s", got)
		}
	})
	stage(t, holding, 4*time.Minute, plan.ReadyCapacity, gangOnTwoNodes, func(s *scene) {
		s.drain("node-b", plan.NodeState{Taint: taint, Deadline: s.start.Add(2 * time.Minute), Capacity: plan.PendingCapacity})
		s.pass(time.Second)
		s.drain("node-b", plan.NodeState{Taint: taint, Deadline: s.start.Add(2 * time.Minute), Capacity: plan.PendingCapacity})
		s.pass(time.Second)
		if got := s.now().Next.Sub(s.start); got != 80*time.Second {
			t.Fatalf("leaves after %s, want the other node's eviction deadline", got)
		}
		if left := s.cancel("node-b", 0); left == nil {
			t.Fatal("it is not cancelled")
		}
		s.pass(time.Second)
		if got := s.now().Next.Sub(s.start); got != 200*time.Second {
			t.Errorf("leaves after %s, want its own eviction deadline again", got)
		}
	})
}

// When one answers now, the others leave at once, on both nodes, and go on to when it has gone
// with its node.
func TestGangLeavesWhenOneAnswers(t *testing.T) {
	var allowed atomic.Bool
	stage(t, holding, 4*time.Minute, plan.PendingCapacity, func(f *fakeAPI) {
		gangOnTwoNodes(f)
		f.answer = func(_, path string, _ map[string]any) (int, any) {
			if strings.HasSuffix(path, "/b/eviction") && !allowed.Load() {
				return 429, metav1.Status{Code: 429, Message: "not yet"}
			}
			return 0, nil
		}
	}, func(s *scene) {
		s.drainToo("node-b", 2*time.Minute)
		s.d.Answer("node-b", "uid-c", plan.WhenNow)
		s.pass(time.Second)
		if got := s.evictedPods(); got != "a b c d" {
			t.Fatalf("evicted %s, want the gang", got)
		}
		s.api.gone("c")
		s.api.gone("d")
		s.pass(time.Second)
		s.finish("node-b")
		allowed.Store(true)
		s.pass(10 * time.Second)
		if r := s.finish("node-a"); r.Left != 0 {
			t.Errorf("%+v", r)
		}
	})
}
