package offerings

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// The rate jumps with the share that is lost, decays, and adapts to the offering.
func TestRate(t *testing.T) {
	prior := Prior{Base: 0.1, Jump: 2, BaseWeight: 4, JumpWeight: 4, Decay: 20 * time.Minute}
	var r Rate
	for _, tt := range []struct{ got, want float64 }{
		{r.Odds(prior, time.Hour), 1 - math.Exp(-0.1)}, {r.Odds(prior, 0), 0},
		{(&Rate{Lost: 9.8, Hours: 80}).Odds(Prior{Base: 0.01, BaseWeight: 0.2, Jump: 1, JumpWeight: 1, Decay: time.Hour}, time.Hour), 0.095},
		{(&Rate{Lost: 1e9}).Odds(prior, time.Hour), 1},
	} {
		if math.Abs(tt.got-tt.want) > 0.0005 {
			t.Errorf("odds %.4f, want %.4f", tt.got, tt.want)
		}
	}

	r.Stood(prior, 10, time.Minute)
	few, many := r, r
	few.Lose(prior, 1, 0.1, few.Share)
	many.Lose(prior, 5, 0.5, many.Share)
	if a, b, c := r.Odds(prior, 30*time.Minute), few.Odds(prior, 30*time.Minute), many.Odds(prior, 30*time.Minute); !(a < b && b < c) {
		t.Errorf("odds of %.3f, %.3f after a loss of one, and %.3f of five, want them to grow", a, b, c)
	}
	if a, b := many.Odds(prior, 5*time.Minute), many.Odds(prior, 30*time.Minute); !(a < b && b < 6*a) {
		t.Errorf("odds of %.3f in 5 and %.3f in 30 minutes, want the later ones to be lower", a, b)
	}
	jumped := many.Odds(prior, time.Minute)
	many.Stood(prior, 5, 3*time.Hour)
	if late := many.Odds(prior, time.Minute); late > jumped/5 {
		t.Errorf("odds of %.4f three hours after %.4f", late, jumped)
	}

	// Losses by the hour have little to do with each other. Those a minute after another may have followed it.
	var calm, hit, followed Rate
	for range 10 * 24 {
		calm.Stood(prior, 100, time.Hour)
		hit.Stood(prior, 10, time.Hour)
		hit.Lose(prior, 5, 0.5, hit.Share)
		followed.Stood(prior, 10, time.Hour)
		followed.Lose(prior, 1, 0.1, followed.Share)
		followed.Stood(prior, 9, time.Minute)
		followed.Lose(prior, 4, 0.4, followed.Share)
	}
	if odds := calm.Odds(prior, time.Hour); odds > 0.003 {
		t.Errorf("odds of %.4f after ten days of 100 nodes without a loss", odds)
	}
	if odds := hit.Odds(prior, time.Hour); odds < 0.3 || odds > 0.7 {
		t.Errorf("odds of %.2f where half of the nodes are lost every hour", odds)
	}
	if hit.Followed > 0.02*hit.Lost || followed.Followed < 0.05*followed.Lost {
		t.Errorf("%.0f of %.0f followed others by the hour, and %.0f of %.0f by the minute", hit.Followed, hit.Lost, followed.Followed, followed.Lost)
	}
}

// Nodes that are lost within a minute are lost together: the first does not explain the others. Their
// shares are those of the nodes that stood before, and the odds of those that are left rise at once.
func TestLostTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var standing []*corev1.Node
		for i := range 10 {
			standing = append(standing, named(fmt.Sprint("node-", i), spotNode("m5.large", "a")))
		}
		m, stop := keep(t, newConfigMaps(nil), t.Output(), standing...)
		time.Sleep(time.Hour)
		quiet := m.metric(t, "spot_handler_loss_odds")["/spot/30m"].GetGauge().GetValue()
		lose := func(nodes ...*corev1.Node) *tally {
			for _, node := range nodes {
				m.Note(node, record(interruption.SpotInterruption))
				time.Sleep(10 * time.Second)
			}
			return m.of[Loss{Offering{"m5.large", "a"}, "spot"}]
		}
		first := lose(standing[:4]...)
		if first.Followed > 0.01 || math.Abs(first.Share-0.4) > 0.01 {
			t.Errorf("%+v, want a share of 0.4, and none that followed another", first.Rate)
		}
		if after := m.metric(t, "spot_handler_loss_odds")["/spot/30m"].GetGauge().GetValue(); after < 0.15 || quiet > 0.01 {
			t.Errorf("odds of %.3f after four of ten were lost, and %.3f before", after, quiet)
		}
		time.Sleep(time.Minute)
		if next := lose(standing[4]); next.Followed < 0.5 || next.Followed > 1 {
			t.Errorf("%+v, want the one a minute later to have followed", next.Rate)
		}
		stop()
	})
}
