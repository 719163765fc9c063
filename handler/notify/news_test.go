package notify

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// saidNews is one piece of news in short.
type saidNews struct{ Stage, Type, Reason, Text string }

// collecting is a Notifier that keeps what it is given.
type collecting []saidNews

func (c *collecting) Notify(n News) {
	*c = append(*c, saidNews{n.Stage, n.eventType(), n.Reason, n.Text})
}

// These are the words that people read, in Events and in webhooks.
func TestWordsOfNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, rec := interrupted("node-1")
		rec.Kind, rec.Instance, rec.Source, rec.Deadline = interruption.SpotInterruption, "i-1", interruption.Queue, time.Time{}
		rehearsal, waiting, dated := rec, rec, rec
		rehearsal.Source = interruption.Rehearsal
		waiting.Phase = interruption.Waiting
		dated.Deadline = time.Now().Add(90 * time.Second)
		node.Annotations = map[string]string{interruption.Annotation: rec.String()}
		rehearsed := node.DeepCopy()
		rehearsed.Annotations[interruption.Annotation] = rehearsal.String()
		requested := interruption.Replacement{Backend: "karpenter", Name: "claim-1", Pool: "fallback"}
		remarked := requested
		remarked.Reason = "fits 2 of 3 pods"
		pods := interruption.Pods{Total: 5, Graceful: 5}
		cut, refused := pods, pods
		cut.Graceful, cut.Truncated = 4, 1
		refused.Graceful, refused.Left, refused.Refusal = 4, 1, "PDB web allows none"

		var first, second collecting
		all := All{&first, &second}
		for _, n := range []News{
			Noticed(node, rec), Noticed(node, waiting), Noticed(node, dated), Noticed(node, rehearsal),
			Replaced(node, ReasonReplacementRequested, requested), Replaced(rehearsed, ReasonReplacementRequested, remarked),
			Replaced(node, ReasonNoReplacement, remarked),
			Ended(node, ReasonDrained, pods, 0), Ended(node, ReasonDrained, cut, 30*time.Second), Ended(node, ReasonDeadlineReached, refused, -time.Second),
			Ended(node, ReasonNodeGone, pods, 0),
			Canceled(node, rec), Returned(node, rec), Returned(node, rehearsal),
			Unreadable(node, errors.New("no record")),
		} {
			if n.Node == nil {
				t.Errorf("no Node: %+v", n)
			}
			all.Notify(n)
		}
		const notice, outcome, warns, normal = "notice", "outcome", corev1.EventTypeWarning, corev1.EventTypeNormal
		want := collecting{
			{notice, warns, "SpotInterruption", "spot-interruption of i-1 from queue: no deadline; node cordoned"},
			{notice, warns, "SpotInterruption", "spot-interruption of i-1 from queue: no deadline; the drain waits"},
			{notice, warns, "SpotInterruption", "spot-interruption of i-1 from queue: deadline " + dated.Deadline.Format(time.RFC3339) + ", in 90 s; node cordoned"},
			{notice, warns, "SpotInterruption", "rehearsal: spot-interruption of i-1 from rehearsal: no deadline; node cordoned"},
			{"", normal, "ReplacementRequested", "requested claim-1 in pool fallback from karpenter"},
			{"", normal, "ReplacementRequested", "rehearsal: requested claim-1 in pool fallback from karpenter; fits 2 of 3 pods"},
			{"", warns, "NoReplacement", "no replacement: fits 2 of 3 pods"},
			{outcome, normal, "Drained", "5 pods: 5 graceful, 0 truncated, 0 forced, 0 left"},
			{outcome, warns, "Drained", "5 pods: 4 graceful, 1 truncated, 0 forced, 0 left; slack 30 s"},
			{outcome, warns, "DeadlineReached", "5 pods: 4 graceful, 0 truncated, 0 forced, 1 left; slack -1 s; last refusal: PDB web allows none"},
			{outcome, warns, "NodeGone", "5 pods: 5 graceful, 0 truncated, 0 forced, 0 left"},
			{outcome, normal, "InterruptionCanceled", "spot-interruption cancelled; node as it was before"},
			{outcome, normal, "InstanceReturned", "instance i-1 is back after spot-interruption; node as it was before"},
			{outcome, normal, "RehearsalOver", "rehearsal: spot-interruption is over; node as it was before"},
			{"", warns, "RecordUnreadable", "annotation spot-handler/interruption is not acted on: no record"},
		}
		if diff := cmp.Diff(want, first); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if diff := cmp.Diff(want, second); diff != "" {
			t.Errorf("the second one, -want +got:\n%s", diff)
		}
	})
}
