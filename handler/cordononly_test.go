package handler

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	dto "github.com/prometheus/client_model/go"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
)

// With CordonOnly a node is marked, in its time, and nothing else is asked of anybody: the
// drainer and the provisioner of this test would panic.
func TestCordonOnly(t *testing.T) {
	for _, kind := range interruption.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeNodes(&corev1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: "node-a"},
					Spec:       corev1.NodeSpec{ProviderID: "aws:///eu-west-1a/i-a"},
				})
				h := newTestHandler(t, f, func(o *Options) {
					o.CordonOnly, o.ScheduledLead = true, 10*time.Minute
					o.Drainer = &fakeDrainer{CallOffFunc: func(string) (drain.Result, bool, error) { return drain.Result{}, true, nil }}
					o.Provisioner = &fakeProvisioner{}
				})
				n := interruption.Notice{
					Kind: kind, Source: interruption.Queue, EventID: "e", InstanceID: "i-a", Action: interruption.ActionStop,
					Noticed: time.Now(), Received: time.Now(), Deadline: time.Now().Add(time.Hour),
				}
				if kind == interruption.RebalanceRecommendation {
					n.Deadline = time.Time{}
				}
				if verdict, err := h.Accept(t.Context(), n); verdict != interruption.Accepted || err != nil {
					t.Fatalf("%s, %v", verdict, err)
				}
				// As long as there is something to be waited for, then a moment, then past its end.
				for _, pass := range []time.Duration{0, 51 * time.Minute, time.Hour} {
					time.Sleep(pass)
					synctest.Wait()
					for range 3 {
						if _, err := h.reconcile(t.Context(), "node-a"); err != nil {
							t.Fatal(err)
						}
						synctest.Wait()
					}
				}
				node, _ := f.raw(t)
				rec, _, err := recordOf(node)
				if err != nil || rec.Phase != interruption.Noticed || !node.Spec.Unschedulable || len(node.Spec.Taints) != 1 {
					t.Errorf("phase %s, %v, unschedulable %v, taints %v", rec.Phase, err, node.Spec.Unschedulable, node.Spec.Taints)
				}

				// It goes with its pods, as was asked for: nothing has failed.
				f.remove("node-a")
				synctest.Wait()
				if _, err := h.reconcile(t.Context(), "node-a"); err != nil {
					t.Fatal(err)
				}
				var failed dto.Metric
				if err := h.metrics.drains.WithLabelValues(string(kind), resultFailed).Write(&failed); err != nil || failed.GetCounter().GetValue() != 0 {
					t.Errorf("%v drains have failed, %v", failed.GetCounter().GetValue(), err)
				}
			})
		})
	}
}
