package offerings

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

func ofInstance(i int, node *corev1.Node) *corev1.Node {
	node.Name, node.Spec.ProviderID = fmt.Sprint("node-", i), fmt.Sprintf("aws:///eu-west-1a/i-%017x", i)
	return node
}

// A kubelet writes its Node's labels, its annotations and so its record. Whatever they say later, its
// instance has lost one offering, once.
func TestOneInstanceIsLostOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := keep(t, newConfigMaps(nil), t.Output())
		defer stop()
		began := time.Now()
		for i := range 1100 {
			m.Note(ofInstance(1, spotNode(fmt.Sprint("type-", i), "a")), record(interruption.SpotInterruption))
			time.Sleep(time.Second)
		}
		m.Note(ofInstance(2, spotNode("m5.large", "b")), record(interruption.SpotInterruption))
		if n := len(m.of); n != 2 {
			t.Errorf("%d offerings were lost with two instances", n)
		}
		if at := m.lastLoss(); at.Sub(began) < 1100*time.Second {
			t.Errorf("the last loss was %s after the first, want that of the second instance", at.Sub(began))
		}
		if got := m.of[Loss{Offering{"type-0", "a"}, "spot"}]; got == nil || !got.Last.Equal(began) || got.Lost > 1 {
			t.Errorf("%+v, want one loss, received at first", got)
		}
	})
}

// A recommendation and the notice that follows it are both heard.
func TestNoticeAfterARecommendation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := keep(t, newConfigMaps(nil), t.Output())
		defer stop()
		node := ofInstance(1, spotNode("m5.large", "a"))
		m.Note(node, record(interruption.RebalanceRecommendation))
		m.wantTally(t, "a", 0, 0)
		time.Sleep(time.Minute)
		m.Note(node, record(interruption.SpotInterruption))
		m.wantTally(t, "a", 1, 0)
		if at := m.lastLoss(); !at.Equal(time.Now()) {
			t.Errorf("last loss at %s, want now", at)
		}
		time.Sleep(remembered)
		m.Note(ofInstance(2, spotNode("m5.large", "b")), record(interruption.SpotInterruption))
		if n := len(m.instances); n != 1 {
			t.Errorf("%d instances are remembered, want one", n)
		}
	})
}

// What made the node knows what it is. Looking that up holds nobody up, and nothing is lost meanwhile.
func TestLabelsOfTheMakerCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := keep(t, newConfigMaps(nil), t.Output())
		defer stop()
		lookups := 0
		m.Identify(func(_ context.Context, node *corev1.Node) (*corev1.Node, error) {
			lookups++
			time.Sleep(2 * time.Second)
			return spotNode("m5.large", "a"), nil
		})
		liar := ofInstance(1, spotNode("p5.48xlarge", "z"))
		liar.Labels["karpenter.sh/nodepool"] = "theirs"
		begun := time.Now()
		m.Note(liar, record(interruption.RebalanceRecommendation))
		m.Note(liar, record(interruption.SpotInterruption))
		m.Note(liar, record(interruption.SpotInterruption))
		if took := time.Since(begun); took > 0 || len(m.Lost()) > 0 {
			t.Errorf("took %s, lost %v; want nothing yet, and no wait", took, m.Lost())
		}
		time.Sleep(3 * time.Second)
		m.wantTally(t, "a", 1, 0)
		if len(m.of) != 1 || lookups != 1 {
			t.Errorf("lost %v after %d lookups, want one of each", m.of, lookups)
		}
	})
}

// When thousands of nodes are lost at once, their lookups take turns, and each is noted in the end.
func TestLookupsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := keep(t, newConfigMaps(nil), t.Output())
		defer stop()
		var underWay, most atomic.Int32
		m.Identify(func(_ context.Context, node *corev1.Node) (*corev1.Node, error) {
			n := underWay.Add(1)
			defer underWay.Add(-1)
			if n > most.Load() {
				most.Store(n)
			}
			time.Sleep(time.Second)
			return spotNode("m5.large", "a"), nil
		})
		const lost = 10 * identifyAtOnce
		for i := range lost {
			m.Note(ofInstance(i, spotNode("m5.large", "a")), record(interruption.SpotInterruption))
		}
		time.Sleep(time.Minute)
		if got := m.of[Loss{Offering{"m5.large", "a"}, "spot"}]; most.Load() != 32 || got == nil || got.Lost < lost-1 {
			t.Errorf("%d lookups at once, want 32; %+v, want %d lost", most.Load(), got, lost)
		}
	})
}

// While what made the node can't be asked, its own labels are not believed, and nothing is lost.
func TestLabelsAreNotBelievedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := keep(t, newConfigMaps(nil), t.Output())
		defer stop()
		lookups, fails := 0, errors.New("the API server is unreachable")
		m.Identify(func(context.Context, *corev1.Node) (*corev1.Node, error) {
			lookups++
			return spotNode("m5.large", "a"), fails
		})
		liar := ofInstance(1, spotNode("p5.48xlarge", "z"))
		rec := record(interruption.SpotInterruption)
		for range 60 { // as it is reconciled
			m.Note(liar, rec)
			time.Sleep(time.Second)
		}
		if len(m.Lost()) > 0 || len(m.of) > 0 || lookups != 2 {
			t.Errorf("lost %v after %d lookups, want nothing, and one in %s", m.of, lookups, identifyAgain)
		}
		fails = nil
		m.Note(liar, rec)
		synctest.Wait()
		m.wantTally(t, "a", 1, 0)
		if len(m.of) != 1 {
			t.Errorf("lost %v, want one", m.of)
		}
	})
}
