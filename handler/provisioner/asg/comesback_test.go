package asg

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// An instance that is only rebooted comes back to its group: it is not detached for that,
// or it would run on outside of any group.
func TestWhatComesBackIsNotDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud()
		c.put("workers", "InService", id(1))
		b := New(Options{AutoScaling: c, EC2: c})
		rec := interruption.NewRecord(interruption.Notice{
			Kind: interruption.ScheduledEvent, Action: interruption.ActionReboot, EventID: "e", InstanceID: id(1), Deadline: time.Now().Add(time.Hour),
		})
		need := provisioner.Need{Moving: []*corev1.Pod{{}}}
		for _, ask := range []func() (interruption.Replacement, error){
			func() (interruption.Replacement, error) { return b.Request(t.Context(), &corev1.Node{}, rec, need) },
			func() (interruption.Replacement, error) { return b.Choose(t.Context(), &corev1.Node{}, rec, need) },
		} {
			if got, err := ask(); err != nil || got.State != provisioner.StateUnsupported || got.Reason != reasonComesBack {
				t.Errorf("%+v, %v; want it left in its group", got, err)
			}
		}
		if len(c.calls) != 0 {
			t.Errorf("calls %v", c.calls)
		}
	})
}
