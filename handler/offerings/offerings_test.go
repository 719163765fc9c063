package offerings

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

func spotNode(kind, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
		corev1.LabelInstanceTypeStable: kind, corev1.LabelTopologyZone: zone, "karpenter.sh/nodepool": "spot", "karpenter.sh/capacity-type": "spot",
	}}}
}

func record(kind interruption.Kind) interruption.Record {
	return interruption.Record{Kind: kind, Received: time.Now(), Phase: interruption.Noticed}
}

func TestWhatCounts(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*corev1.Node, *interruption.Record)
		want   bool
	}{
		"a notice":                     {func(*corev1.Node, *interruption.Record) {}, true},
		"a recommendation":             {func(_ *corev1.Node, r *interruption.Record) { r.Kind = interruption.RebalanceRecommendation }, true},
		"maintenance":                  {func(_ *corev1.Node, r *interruption.Record) { r.Kind = interruption.ScheduledEvent }, false},
		"a rehearsal":                  {func(_ *corev1.Node, r *interruption.Record) { r.Source = interruption.Rehearsal }, false},
		"long ago":                     {func(_ *corev1.Node, r *interruption.Record) { r.Received = r.Received.Add(-Lately) }, false},
		"an on-demand instance":        {func(n *corev1.Node, _ *interruption.Record) { n.Labels["karpenter.sh/capacity-type"] = "on-demand" }, false},
		"an instance of no known type": {func(n *corev1.Node, _ *interruption.Record) { delete(n.Labels, corev1.LabelInstanceTypeStable) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, node, rec := New(), spotNode("m5.large", "a"), record(interruption.SpotInterruption)
			tt.change(node, &rec)
			m.Note(node, rec)
			if got := m.Lost(); len(got) > 0 != tt.want || tt.want && got[0] != (Loss{Offering{"m5.large", "a"}, "spot"}) {
				t.Errorf("lost %v, want one: %t", got, tt.want)
			}
		})
	}
}

func TestLossesFade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, first := New(), record(interruption.SpotInterruption)
		m.Note(spotNode("m5.large", "b"), first)
		m.Note(spotNode("m5.large", "a"), first)
		time.Sleep(Lately - time.Second)
		m.Note(spotNode("m5.large", "a"), record(interruption.SpotInterruption))
		m.Note(spotNode("m5.large", "a"), first) // its Node is visited again
		if got, want := m.Lost(), []Loss{{Offering{"m5.large", "a"}, "spot"}, {Offering{"m5.large", "b"}, "spot"}}; !slices.Equal(got, want) {
			t.Errorf("lost %v, want %v", got, want)
		}
		time.Sleep(time.Second)
		if got := m.Lost(); len(got) != 1 || got[0].Zone != "a" {
			t.Errorf("lost %v, want what was lost again", got)
		}
		for i := range 2 * maxLosses {
			time.Sleep(time.Millisecond)
			m.Note(spotNode(fmt.Sprintf("t%04d", i), "a"), record(interruption.SpotInterruption))
		}
		if got := m.Lost(); len(got) != maxLosses || got[0].Type != fmt.Sprintf("t%04d", maxLosses) {
			t.Errorf("%d are remembered, from %v on, want the last %d", len(got), got[0], maxLosses)
		}
	})
}

// What has faded to nothing is forgotten, but not what stands, or was lost of late.
func TestFadedIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		gone, stands := spotNode("m5.large", "gone"), spotNode("m5.large", "stands")
		m.recount([]*corev1.Node{gone, stands})
		time.Sleep(time.Hour)
		m.recount([]*corev1.Node{stands})
		time.Sleep(20 * 24 * time.Hour)
		m.Note(spotNode("m5.large", "lost"), record(interruption.RebalanceRecommendation))
		m.recount([]*corev1.Node{stands})
		if len(m.of) != 2 || m.of[Loss{Offering{"m5.large", "gone"}, "spot"}] != nil {
			t.Errorf("%v, want what stands and what was lost", m.of)
		}
	})
}

// lastLoss is when the last node was lost.
func (m *Memory) lastLoss() (at time.Time) {
	last, _ := m.LastLosses(time.Time{})
	for _, t := range last {
		at = interruption.Later(at, t)
	}
	return at
}

// An offering has lost a node if any pool has, of it; a pool has had what it has nodes of, and what it lost.
func TestLastLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		m.recount([]*corev1.Node{spotNode("m5.large", "a"), named("more", spotNode("m5.large", "a"))})
		lose := func(pool, zone string) time.Time {
			node := spotNode("m5.large", zone)
			node.Labels["karpenter.sh/nodepool"] = pool
			m.Note(node, record(interruption.RebalanceRecommendation))
			time.Sleep(time.Minute)
			return time.Now().Add(-time.Minute)
		}
		first := lose("spot", "b")
		second := lose("other", "b")
		third := lose("other", "c")
		b, c := Offering{"m5.large", "b"}, Offering{"m5.large", "c"}
		if last, _ := m.LastLosses(first); len(last) != 2 || !last[b].Equal(second) || !last[c].Equal(third) {
			t.Errorf("lost %v", last)
		}
		if last, _ := m.LastLosses(second); len(last) != 1 || !last[c].Equal(third) {
			t.Errorf("lost since then: %v", last)
		}
		if had := m.Had("spot"); !slices.Equal(had, []Offering{{"m5.large", "a"}, b}) {
			t.Errorf("pool spot has had %v", had)
		}
		if n := m.Standing("spot"); n != 2 || m.Standing("other") != 0 {
			t.Errorf("%d nodes of pool spot, and %d of the other", n, m.Standing("other"))
		}
	})
}
