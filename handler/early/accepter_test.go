package early

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// cluster has instances as Nodes, and records the notices about them.
type cluster struct {
	mu       sync.Mutex
	nodes    map[string]bool
	fail     error
	stale    bool     // Find knows Nodes that are gone
	recorded []string // event ids
	asked    int
}

var (
	_ interruption.Accepter = (*cluster)(nil)
	_ nodes.Finder          = (*cluster)(nil)
)

func (c *cluster) Find(n interruption.Notice) (*corev1.Node, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return nil, c.nodes[n.InstanceID] || c.stale
}

func (c *cluster) Accept(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	switch {
	case c.fail != nil:
		return "", c.fail
	case !c.nodes[n.InstanceID]:
		return interruption.Unknown, nil
	}
	for _, id := range c.recorded {
		if id == n.EventID {
			return interruption.Duplicate, nil
		}
	}
	c.recorded = append(c.recorded, n.EventID)
	return interruption.Accepted, nil
}

func (c *cluster) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

type setup struct {
	*Accepter
	t       *testing.T
	cluster *cluster
}

// bubble runs a test with an Accepter.
func bubble(t *testing.T, name string, test func(s *setup)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &setup{t: t, cluster: &cluster{nodes: map[string]bool{}}}
			s.Accepter = New(Options{Next: s.cluster, Nodes: s.cluster, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop()})
			test(s)
		})
	})
}

// register makes an instance a Node.
func (s *setup) register(instance string) {
	s.cluster.set(func() { s.cluster.nodes[instance] = true })
	s.Appeared(instance)
	synctest.Wait()
}

// remove deletes an instance's Node.
func (s *setup) remove(instance string) {
	s.cluster.set(func() { delete(s.cluster.nodes, instance) })
	s.Gone(instance)
	synctest.Wait()
}

// want submits a notice; the verdict "" is ErrNoNode.
func (s *setup) want(n interruption.Notice, want interruption.Verdict) {
	s.t.Helper()
	got, err := s.Accept(s.t.Context(), n)
	if got != want || errors.Is(err, interruption.ErrNoNode) != (want == "") {
		s.t.Errorf("%s about %s: %q, %v, want %q", n.EventID, n.InstanceID, got, err, want)
	}
}

func (s *setup) counts(want map[string]float64) {
	s.t.Helper()
	got := map[string]float64{}
	for _, outcome := range []string{recorded, expired, dropped} {
		var m dto.Metric
		if err := s.total.WithLabelValues(outcome).Write(&m); err != nil {
			s.t.Fatal(err)
		}
		if n := m.GetCounter().GetValue(); n > 0 {
			got[outcome] = n
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("counted (-want +got):\n%s", diff)
	}
}

func notice(kind interruption.Kind, instance, event string) interruption.Notice {
	n := interruption.Notice{Kind: kind, Source: interruption.Queue, EventID: event, InstanceID: instance, Noticed: time.Now(), Received: time.Now()}
	if kind != interruption.RebalanceRecommendation {
		n.Deadline = n.Noticed.Add(2 * time.Minute)
	}
	return n
}

func TestKeptUntilTheNodeAppears(t *testing.T) {
	bubble(t, "recorded at once", func(s *setup) {
		n := notice(interruption.SpotInterruption, "i-1", "notice")
		hint := notice(interruption.RebalanceRecommendation, "i-1", "hint")
		var over []<-chan struct{}
		for _, n := range []interruption.Notice{n, hint} {
			s.want(n, "")
			_, err := s.Accept(s.t.Context(), n)
			e, ok := errors.AsType[*interruption.NoNodeError](err)
			if !ok {
				s.t.Fatalf("error %v does not say when to ask again", err)
			}
			over = append(over, e.Over)
		}
		s.register("i-2")
		for _, c := range over {
			select {
			case <-c:
				s.t.Error("to be asked again though another instance has become a Node")
			default:
			}
		}
		s.register("i-1")
		for _, c := range over {
			<-c
		}
		s.want(n, interruption.Accepted)
		s.want(hint, interruption.Accepted)
		s.want(n, interruption.Duplicate) // a second delivery
		s.counts(map[string]float64{recorded: 2})
		if len(s.kept) != 0 {
			s.t.Errorf("%d are still kept", len(s.kept))
		}
	})
	bubble(t, "the API server is unreachable when it appears", func(s *setup) {
		n := notice(interruption.SpotInterruption, "i-1", "notice")
		s.want(n, "")
		away := errors.New("away")
		s.cluster.set(func() { s.cluster.fail = away })
		s.register("i-1")
		if _, err := s.Accept(s.t.Context(), n); !errors.Is(err, away) {
			s.t.Errorf("%v, want the error itself, so that it is said", err)
		}
		s.cluster.set(func() { s.cluster.fail = nil })
		s.want(n, interruption.Accepted)
		s.counts(map[string]float64{recorded: 1})
	})
}

func TestKeptNoLongerThanUseful(t *testing.T) {
	bubble(t, "a notice until its deadline", func(s *setup) {
		n := notice(interruption.SpotInterruption, "i-1", "notice")
		s.want(n, "")
		time.Sleep(2*time.Minute - time.Second)
		s.want(n, "")
		time.Sleep(time.Second)
		s.want(n, interruption.Unknown)
		s.counts(map[string]float64{expired: 1})
	})
	bubble(t, "a recommendation as long as a Node can take, also with a source that forgets", func(s *setup) {
		s.want(notice(interruption.RebalanceRecommendation, "i-1", "hint"), "")
		time.Sleep(registers - time.Second)
		s.want(notice(interruption.SpotInterruption, "i-2", "notice"), "")
		if len(s.kept) != 2 {
			s.t.Errorf("%d are kept, want both", len(s.kept))
		}
		time.Sleep(time.Second)
		s.want(notice(interruption.SpotInterruption, "i-3", "notice"), "")
		if len(s.kept) != 2 {
			s.t.Errorf("%d are kept, want the two notices", len(s.kept))
		}
		s.counts(map[string]float64{expired: 1})
	})
	bubble(t, "what a Node that appears would not change", func(s *setup) {
		old := notice(interruption.SpotInterruption, "i-1", "late")
		old.Deadline = time.Now()
		s.want(old, interruption.Unknown)
		s.want(notice(interruption.ScheduledEvent, "i-1", "event"), interruption.Unknown)
		s.want(notice(interruption.StateChange, "i-1", "state"), interruption.Unknown)
		s.want(notice(interruption.InstanceTerminating, "i-1", "hook"), interruption.Unknown)
		s.counts(map[string]float64{})
	})
}

// A Node that is gone, which the index does not know yet, is not asked for again and again without a pause.
func TestGoneNodeThatIsStillKnown(t *testing.T) {
	bubble(t, "", func(s *setup) {
		s.cluster.stale = true
		_, err := s.Accept(t.Context(), notice(interruption.SpotInterruption, "i-1", "e"))
		e, ok := errors.AsType[*interruption.NoNodeError](err)
		if !ok {
			t.Fatal(err)
		}
		select {
		case <-e.Over:
			t.Error("worth asking again at once")
		default:
		}
		if len(s.kept) != 0 {
			t.Errorf("%d are kept, want none: nothing will tell that its Node appears", len(s.kept))
		}
	})
}

// The machine of a Node that has been there and gone does not become one again.
func TestNotKeptAfterTheNode(t *testing.T) {
	bubble(t, "its message is another cluster's at once", func(s *setup) {
		s.register("i-1")
		s.remove("i-1")
		s.want(notice(interruption.RebalanceRecommendation, "i-1", "hint"), interruption.Unknown)
		s.want(notice(interruption.SpotInterruption, "i-1", "notice"), interruption.Unknown)
		s.counts(map[string]float64{})
		time.Sleep(registers + 1)
		s.want(notice(interruption.SpotInterruption, "i-1", "notice"), "")
	})
	bubble(t, "while the API server is unreachable", func(s *setup) {
		n := notice(interruption.SpotInterruption, "i-1", "notice")
		s.want(n, "")
		s.cluster.set(func() { s.cluster.fail = errors.New("away") })
		s.register("i-1")
		s.cluster.set(func() { s.cluster.fail = nil })
		s.remove("i-1")
		s.want(n, interruption.Unknown)
		s.counts(map[string]float64{recorded: 1})
	})
	bubble(t, "a Node that was only deleted and registers again", func(s *setup) {
		n := notice(interruption.SpotInterruption, "i-1", "notice")
		s.register("i-1")
		s.remove("i-1")
		s.register("i-1")
		s.want(n, interruption.Accepted)
	})
	bubble(t, "thousands", func(s *setup) {
		for i := range maxGone + 1 {
			s.Gone(fmt.Sprintf("i-%d", i))
		}
		s.want(notice(interruption.SpotInterruption, fmt.Sprintf("i-%d", maxGone), "notice"), interruption.Unknown)
		if len(s.gone.Keys()) > maxGone {
			s.t.Errorf("%d are remembered, want %d at most", len(s.gone.Keys()), maxGone)
		}
	})
}

func TestBounded(t *testing.T) {
	fill := func(s *setup, kind interruption.Kind) {
		for i := range maxKept {
			s.want(notice(kind, fmt.Sprintf("i-%d", i), "event"), "")
		}
	}
	bubble(t, "recommendations go first, then the oldest", func(s *setup) {
		hint := notice(interruption.RebalanceRecommendation, "i-hint", "hint")
		s.want(hint, "")
		time.Sleep(time.Second)
		fill(s, interruption.SpotInterruption)
		s.want(hint, interruption.Unknown)
		time.Sleep(time.Second)
		for _, id := range []string{"i-a", "i-b"} {
			s.want(notice(interruption.SpotInterruption, id, "event"), "")
		}
		if len(s.kept) != maxKept {
			s.t.Errorf("%d are kept, want %d", len(s.kept), maxKept)
		}
		s.counts(map[string]float64{dropped: 1})
		s.register("i-a")
		s.counts(map[string]float64{dropped: 1, recorded: 1})
	})
	bubble(t, "what is recorded makes room", func(s *setup) {
		fill(s, interruption.SpotInterruption)
		s.register("i-7")
		s.want(notice(interruption.RebalanceRecommendation, "i-hint", "hint"), "")
		s.counts(map[string]float64{recorded: 1})
	})
	bubble(t, "what turns out to be ours stays", func(s *setup) {
		s.opts.Launched = func(context.Context) (map[string]bool, error) { return map[string]bool{"i-ours": true}, nil }
		ours := notice(interruption.RebalanceRecommendation, "i-ours", "hint")
		s.want(ours, "")
		time.Sleep(time.Second)
		for i := range maxKept { // for the last of them there is no room, and one has to go
			_, _ = s.Accept(s.t.Context(), notice(interruption.SpotInterruption, fmt.Sprintf("i-%d", i), "event"))
		}
		if s.kept[keyOf(ours)] == nil {
			s.t.Error("what is ours has gone for another cluster's notice")
		}
	})
	bubble(t, "what is about to be ours stays", func(s *setup) {
		asked := 0
		s.opts.Launched = func(context.Context) (map[string]bool, error) {
			if asked++; asked == 1 {
				return nil, errors.New("away")
			}
			return map[string]bool{"i-ours": true}, nil
		}
		ours := notice(interruption.RebalanceRecommendation, "i-ours", "hint")
		s.want(ours, "")
		fill(s, interruption.SpotInterruption) // the last of these comes when it is full, and cannot tell
		if asked != 1 {
			s.t.Errorf("asked %d times which are ours, want once", asked)
		}
		s.want(ours, interruption.Unknown)
		time.Sleep(askEvery)
		s.want(ours, "") // the first of the others goes for it
		for i := range 100 {
			s.want(notice(interruption.SpotInterruption, fmt.Sprintf("i-more-%d", i), "event"), "")
		}
		s.want(ours, "")
		if asked != 2 {
			s.t.Errorf("asked %d times, want once in %s", asked, askEvery)
		}
	})
}
