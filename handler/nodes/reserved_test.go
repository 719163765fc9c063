package nodes

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"spot-handler/handler/interruption"
)

// The instances of a reservation are those of the Nodes that are labelled so. A Node that says that it is
// another's instance does not get that one drained.
func TestReserved(t *testing.T) {
	const ours, others = "cr-0123456789abcdef0", "cr-0fedcba9876543210"
	synctest.Test(t, func(t *testing.T) {
		w := watched{watch.NewFakeWithChanSize(10, false)}
		x := New(w, "", zerolog.Nop())
		go func() { _ = x.Run(t.Context()) }()
		born := time.Now()
		add := func(name, instance, label, reservation string) {
			born = born.Add(time.Second)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Name: name, ResourceVersion: "2", CreationTimestamp: metav1.NewTime(born), Labels: map[string]string{label: reservation},
			}}
			node.Spec.ProviderID = "aws:///eu-west-1a/" + instance
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			w.changes.Add(node)
		}
		add("karpenter", "i-0000000000000000b", karpenterReservation, ours)
		add("labelled", "i-0000000000000000a", interruption.ReservationLabel, ours)
		add("another", "i-0000000000000000c", karpenterReservation, others)
		add("none", "i-0000000000000000d", "team", ours)
		add("forged", "i-0000000000000000d", karpenterReservation, ours)
		add("no-instance", "here", karpenterReservation, ours)
		synctest.Wait()
		for reservation, want := range map[string][]string{
			ours:                   {"i-0000000000000000a", "i-0000000000000000b"},
			others:                 {"i-0000000000000000c"},
			"cr-00000000000000000": nil,
		} {
			if diff := cmp.Diff(want, x.Reserved(reservation)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", reservation, diff)
			}
		}
	})
}
