package drain

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
)

// requests ends n requests that have begun, each of a namespace of its own.
func requests(p *pace, n int, busy bool) {
	for i := range n {
		p.do(&task{pod: pod("a", inNamespace(fmt.Sprint(i)))}, func() bool { return busy })
	}
}

// noTask is a push that none is ever put back with.
func noTask(*task) { panic("no namespace has more than its share") }

func TestPaceFollowsTheAPIServer(t *testing.T) {
	p := newPace(32, noTask)
	round := func(busy bool) {
		n := p.limit
		for range n {
			p.begin(t.Context())
		}
		requests(p, n, busy)
	}
	round(true)
	if p.limit != 16 {
		t.Errorf("limit %d after a round of refusals, want it halved once", p.limit)
	}
	round(true)
	if p.limit != 8 {
		t.Errorf("limit %d after another round, want 8", p.limit)
	}
	for range 10 {
		round(true)
	}
	if p.limit != 1 {
		t.Errorf("limit %d, want never below 1", p.limit)
	}
	for range 100 {
		round(false)
	}
	if p.limit != 32 {
		t.Errorf("limit %d after many good rounds, want 32 again and no more", p.limit)
	}
}

func TestPaceHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := newPace(1, noTask)
		p.begin(ctx)
		began := make(chan bool, 2)
		go func() { began <- p.begin(ctx) }()
		synctest.Wait()
		if len(began) != 0 {
			t.Fatal("two requests at once, want one")
		}
		requests(p, 1, false)
		if !<-began {
			t.Fatal("the second was not let in")
		}
		go func() { began <- p.begin(ctx) }()
		synctest.Wait()
		cancel()
		p.wake()
		if <-began {
			t.Fatal("let in after the end")
		}
	})
}

// Requests that are not answered for seconds lend their seats, but there is a limit to how
// many are under way, and none is lent soon after the API server has turned one away.
func TestPaceOfRequestsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := newPace(2, noTask)
		underway, answer := 0, make(chan bool)
		var mu sync.Mutex
		go func() {
			for p.begin(ctx) {
				mu.Lock()
				underway++
				of := &task{pod: pod("a", inNamespace(fmt.Sprint(underway)))}
				mu.Unlock()
				go p.do(of, func() bool { return <-answer })
			}
		}()
		after := func(d time.Duration, want int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if underway != want {
				t.Errorf("%d requests sent, want %d", underway, want)
			}
		}
		after(patience-time.Millisecond, 2)
		after(time.Millisecond, 4)
		after(patience, 6)
		after(patience, 8)
		after(10*patience, 8) // four for each seat

		answer <- true // too busy: the answers to all that are under way count once
		after(0, 8)
		p.mu.Lock()
		if p.limit != 1 || p.active+p.lent != 7 {
			t.Errorf("limit %d with %d under way, want 1 with 7", p.limit, p.active+p.lent)
		}
		p.mu.Unlock()
		after(10*patience, 8)
		for range 7 {
			answer <- true
		}
		after(calm-time.Millisecond, 9)
		p.mu.Lock()
		if p.limit != 1 || p.lent != 0 {
			t.Errorf("limit %d and %d lent, want 1 and none", p.limit, p.lent)
		}
		p.mu.Unlock()
		after(time.Millisecond, 10) // it has not refused anything for a while, and hangs still
		cancel()
		p.wake()
		close(answer)
	})
}

// An admission webhook that hangs for some pods' evictions does not hold up those of others in their
// namespace, which has two of four seats.
func TestEvictionsThatHang(t *testing.T) {
	var answers atomic.Bool
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a", "b", "c", "d", "e")(f) // there are seats for four
		f.hold = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/eviction") && !strings.HasSuffix(r.URL.Path, "/e/eviction") && !answers.Load() {
				<-r.Context().Done()
				return r.Context().Err()
			}
			return nil
		}
	}, func(s *scene) {
		s.pass(2 * patience)
		if n := s.api.count("POST", "/e/eviction"); n != 1 {
			s.Errorf("%d evictions of the fifth pod after %s, want 1", n, 2*patience)
		}
		answers.Store(true)
		s.pass(2 * evictTimeout)
		if n := s.api.count("POST", "/eviction"); n != 5 {
			s.Errorf("%d evictions, want those of all five when the webhook answers again", n)
		}
	})
}

// One that hangs for all evictions of a namespace, however many, delays no other namespace's.
func TestEvictionsOfOneNamespaceThatHang(t *testing.T) {
	var answers atomic.Bool
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		for i := range 100 {
			p := pod(fmt.Sprint("hangs-", i), inNamespace("hostile"))
			p.APIVersion, p.Kind, p.Spec.NodeName = "v1", "Pod", "node-a"
			f.put("/api/v1/namespaces/hostile/pods/"+p.Name, p)
		}
		f.hold = func(r *http.Request) error {
			if strings.Contains(r.URL.Path, "/hostile/") && strings.HasSuffix(r.URL.Path, "/eviction") && !answers.Load() {
				<-r.Context().Done()
				return r.Context().Err()
			}
			return nil
		}
	}, func(s *scene) {
		for range 60 { // all the time there is another that is due
			s.pass(time.Second)
			s.d.pace.mu.Lock()
			if own := s.d.pace.of["hostile"]; own == nil || own.active > 3 || own.active > 2 && own.lent > 0 || own.lent > 6 {
				s.Errorf("of one namespace %+v are under way, want at most 3 of 4 seats, 2 while any is lent, and 6 of 12 that are lent", own)
			}
			s.d.pace.mu.Unlock()
		}
		s.api.pod(pod("a"))
		s.pass(0)
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Errorf("%d evictions of the other namespace's pod, want 1 at once", n)
		}
		answers.Store(true)
		s.pass(2 * evictTimeout)
		if n := s.api.count("POST", "/eviction"); n != 101 {
			s.Errorf("%d evictions, want those of all when the webhook answers again", n)
		}
	})
}

// An API server that has no room is given time, and the pod is not taken for blocked.
func TestBusyServer(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		f.answer = func(string, string, map[string]any) (int, any) {
			return http.StatusTooManyRequests, &metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
				Details: &metav1.StatusDetails{RetryAfterSeconds: 5},
			}
		}
	}, func(s *scene) {
		s.until(4 * time.Second)
		if n := s.api.count("POST", "/eviction"); n != 1 {
			s.Errorf("%d tries within Retry-After, want 1", n)
		}
		if s.d.pace.limit != 2 {
			s.Errorf("%d requests at once after a refusal, want 2 of 4", s.d.pace.limit)
		}
		if s.d.blockedPods() != 0 {
			s.Error("the pod counts as blocked by a budget")
		}
	})
}
