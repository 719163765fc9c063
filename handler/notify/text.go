package notify

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// What is said of an interruption is the same wherever it is said.

// Said is the text as it is said of that record: of a rehearsal, nobody must take it for an
// interruption.
func Said(r interruption.Record, text string) string {
	if r.Rehearsed() {
		return rehearsed + text
	}
	return text
}

const rehearsed = "rehearsal: "

// About reports whether the Event is about this pod. The UID alone does not tell: whoever may write
// Events in a namespace of their own may give them that of any pod.
func About(e *corev1.Event, pod *corev1.Pod) bool {
	of := e.InvolvedObject
	return e.Namespace == pod.Namespace && of.Namespace == pod.Namespace && of.Name == pod.Name && of.UID == pod.UID
}

// Refusal is the reason that an Event EvictionBlocked gives.
func Refusal(e *corev1.Event) string {
	_, reason, _ := strings.Cut(strings.TrimPrefix(e.Message, rehearsed), ": ")
	return strings.TrimSpace(reason)
}

// NoticeReason is the reason of the Event for a notice. Each kind has its own: its words
// without the hyphens, as reasons are written.
func NoticeReason(k interruption.Kind) string {
	var reason strings.Builder
	for word := range strings.SplitSeq(string(k), "-") {
		if word != "" {
			reason.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return reason.String()
}

// NoticeText says what is about to happen, and when.
func NoticeText(r interruption.Record) string {
	when := "no deadline"
	if d := r.DeadlineTime(); !d.IsZero() {
		when = fmt.Sprintf("deadline %s, in %.0f s", d.Format(time.RFC3339), time.Until(d).Seconds())
	}
	done := "node cordoned"
	if r.Phase == interruption.Waiting {
		done = "the drain waits"
	}
	return fmt.Sprintf("%s of %s from %s: %s; %s", r.Kind, r.Instance, r.Source, when, done)
}

// EndText says what became of the pods; no slack is 0.
func EndText(p interruption.Pods, slack time.Duration) string {
	text := fmt.Sprintf("%d pods: %d graceful, %d truncated, %d forced, %d left", p.Total, p.Graceful, p.Truncated, p.Forced, p.Left)
	if slack != 0 {
		text += fmt.Sprintf("; slack %.0f s", slack.Seconds())
	}
	if p.Refusal != "" {
		text += "; last refusal: " + p.Refusal
	}
	return text
}

// CanceledText says that an interruption was called off.
func CanceledText(r interruption.Record) string {
	return fmt.Sprintf("%s called off; node as it was before", r.Kind)
}

// ReturnedReason is the reason of the Event for a node that is back in service.
func ReturnedReason(r interruption.Record) string {
	if r.Rehearsed() {
		return ReasonRehearsalOver
	}
	return ReasonInstanceReturned
}

// ReturnedText says that the instance has come back, or its rehearsal is over.
func ReturnedText(r interruption.Record) string {
	if r.Rehearsed() {
		return fmt.Sprintf("%s is over; node as it was before", r.Kind)
	}
	return fmt.Sprintf("instance %s is back after %s; node as it was before", r.Instance, r.Kind)
}
