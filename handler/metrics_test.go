package handler

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// measured are the histograms and counters that are not zero: "NAME LABELS" and the value, of a
// histogram "SUM in COUNT".
func measured(t *testing.T, h *Handler, names ...string) map[string]string {
	t.Helper()
	families, err := h.opts.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, f := range families {
		for _, name := range names {
			if f.GetName() != "spot_handler_"+name {
				continue
			}
			for _, m := range f.GetMetric() {
				key := name
				for _, l := range m.GetLabel() {
					key += " " + l.GetValue()
				}
				if n := m.GetHistogram().GetSampleCount(); n > 0 {
					values[key] = fmt.Sprintf("%v in %d", m.GetHistogram().GetSampleSum(), n)
				}
				if v := m.GetCounter().GetValue(); v > 0 {
					values[key] = fmt.Sprint(v)
				}
			}
		}
	}
	return values
}

// A notice is seen, its node is cordoned three seconds later, and the drain ends 40 s after the
// notice, 80 s before the deadline: that is what the histograms say.
func TestTimesOfADrain(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		n := notice(interruption.SpotInterruption, func(n *interruption.Notice) {
			n.Noticed, n.Received, n.Deadline = time.Now(), time.Now(), time.Now().Add(2*time.Minute)
		})
		time.Sleep(3 * time.Second)
		accept(t, h, n)
		s.state, s.begun = provisioner.StateReady, true
		for range 3 {
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(37 * time.Second)
		s.left = 0
		for range 3 {
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
		}
		want := map[string]string{
			"notice_lead_seconds spot-interruption queue": "120 in 1",
			"notice_to_cordon_seconds queue":              "3 in 1",
			"drain_duration_seconds spot-interruption":    "40 in 1",
			"drain_slack_seconds spot-interruption":       "80 in 1",
			"drains_total spot-interruption completed":    "1",
			"notices_total spot-interruption queue":       "1",
		}
		got := measured(t, h, "notice_lead_seconds", "notice_to_cordon_seconds", "drain_duration_seconds", "drain_slack_seconds", "drains_total", "notices_total", "records_rejected_total")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}

// The time to the cordon counts from when the Node was there, if the notice had to wait for it. A drain
// that ends at its deadline has no slack, and one that waits for its time is not cordoned.
func TestTimesThatDoNotCount(t *testing.T) {
	story(t, func(t *testing.T, _ *script, f *fakeNodes, h *Handler) {
		n := notice(interruption.SpotInterruption, func(n *interruption.Notice) {
			n.Noticed, n.Received, n.Deadline = time.Now(), time.Now(), time.Now().Add(2*time.Minute)
		})
		time.Sleep(20 * time.Second)
		f.change(func(n *corev1.Node) { n.CreationTimestamp = metav1.Now() })
		time.Sleep(time.Second)
		accept(t, h, n)
		if diff := cmp.Diff(map[string]string{"notice_to_cordon_seconds queue": "1 in 1"}, measured(t, h, "notice_to_cordon_seconds")); diff != "" {
			t.Errorf("the Node came later (-want +got):\n%s", diff)
		}
	})
	story(t, func(t *testing.T, _ *script, _ *fakeNodes, h *Handler) {
		accept(t, h, scheduled("a", 240*time.Hour, interruption.ActionReboot))
		if diff := cmp.Diff(map[string]string{}, measured(t, h, "notice_to_cordon_seconds")); diff != "" {
			t.Errorf("the node is not cordoned yet (-want +got):\n%s", diff)
		}
	})
	story(t, func(t *testing.T, _ *script, _ *fakeNodes, h *Handler) {
		rec := interruption.NewRecord(notice(interruption.SpotInterruption))
		h.metrics.ended(rec, resultDeadline, interruption.Pods{}, rec.Deadline)
		if diff := cmp.Diff(map[string]string{}, measured(t, h, "drain_slack_seconds")); diff != "" {
			t.Errorf("it ended at its deadline (-want +got):\n%s", diff)
		}
	})
}

// A record that cannot be read is counted once, however often the node is looked at.
func TestRejectedRecordIsCounted(t *testing.T) {
	story(t, func(t *testing.T, _ *script, f *fakeNodes, h *Handler) {
		f.change(func(n *corev1.Node) {
			if n.Annotations == nil {
				n.Annotations = map[string]string{}
			}
			n.Annotations[interruption.Annotation] = "{"
		})
		for range 3 {
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(map[string]string{"records_rejected_total": "1"}, measured(t, h, "records_rejected_total")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
