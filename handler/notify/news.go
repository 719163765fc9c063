package notify

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// The reasons of our Events on Nodes.
const (
	ReasonReplacementRequested = "ReplacementRequested"
	ReasonReplacementFailed    = "ReplacementFailed"
	ReasonNoReplacement        = "NoReplacement"
	ReasonDrained              = "Drained"
	ReasonDeadlineReached      = "DeadlineReached"
	ReasonNodeGone             = "NodeGone"
	ReasonCanceled             = "InterruptionCanceled"
	ReasonInstanceReturned     = "InstanceReturned"
	ReasonRehearsalOver        = "RehearsalOver"
	ReasonReturns              = "ReturnsToSpot"
	ReasonRecordUnreadable     = "RecordUnreadable"
)

// News is what has happened to an interrupted Node.
type News struct {
	Node   *corev1.Node
	Record interruption.Record // of the Node; the zero value if it cannot be read

	// Stage is Notice or Outcome, or empty in between.
	Stage   string
	Reason  string
	Warning bool
	Text    string

	// Of the outcome of a drain.
	Pods  interruption.Pods
	Slack time.Duration // left until the deadline; 0 where there is none
}

// The values of News.Stage.
const (
	Notice  = "notice"
	Outcome = "outcome"
)

// Notifier passes news on. Notify never blocks or fails.
type Notifier interface {
	Notify(n News)
}

// All notifies everyone in it.
type All []Notifier

// Notify passes the news on to all.
func (a All) Notify(n News) {
	for _, each := range a {
		each.Notify(n)
	}
}

// newNews says what is said of that record: of a rehearsal, nobody must take it for an
// interruption.
func newNews(node *corev1.Node, r interruption.Record, stage, reason, text string) News {
	return News{Node: node, Record: r, Stage: stage, Reason: reason, Text: said(r, text)}
}

// warning is newNews of what somebody should look at.
func warning(node *corev1.Node, r interruption.Record, stage, reason, text string) News {
	n := newNews(node, r, stage, reason, text)
	n.Warning = true
	return n
}

// eventType is the type of the Event that says it.
func (n News) eventType() string {
	if n.Warning {
		return corev1.EventTypeWarning
	}
	return corev1.EventTypeNormal
}

func said(r interruption.Record, text string) string {
	switch {
	case r.Rehearsed():
		return rehearsed + text
	case r.Returns():
		return goesBack + text
	}
	return text
}

const (
	rehearsed = "rehearsal: "
	goesBack  = "back to spot: "
)

// recordOf is the Node's record; none, and it is no rehearsal.
func recordOf(node *corev1.Node) interruption.Record {
	rec, _ := interruption.ParseRecord(node.Annotations[interruption.Annotation])
	return rec
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

// Noticed: EC2 is about to end the node.
func Noticed(node *corev1.Node, r interruption.Record) News {
	if r.Returns() {
		return newNews(node, r, Notice, ReasonReturns, "pods move when a spot node is Ready; nothing happens before")
	}
	when := "no deadline"
	if d := r.Deadline; !d.IsZero() {
		when = fmt.Sprintf("deadline %s, in %.0f s", d.Format(time.RFC3339), time.Until(d).Seconds())
	}
	done := "node cordoned"
	if r.Phase == interruption.Waiting {
		done = "the drain waits"
	}
	text := fmt.Sprintf("%s of %s from %s: %s; %s", r.Kind, r.Instance, r.Source, when, done)
	return warning(node, r, Notice, NoticeReason(r.Kind), text)
}

// Replaced: capacity was requested for the node's pods, or there will be none.
func Replaced(node *corev1.Node, reason string, r interruption.Replacement) News {
	if reason != ReasonReplacementRequested {
		return warning(node, recordOf(node), "", reason, "no replacement: "+r.Reason)
	}
	why := ""
	if r.Reason != "" {
		why = "; " + r.Reason
	}
	text := fmt.Sprintf("requested %s in pool %s from %s%s", r.Name, r.Pool, r.Backend, why)
	return newNews(node, recordOf(node), "", reason, text)
}

// Ended: the drain is over.
func Ended(node *corev1.Node, reason string, p interruption.Pods, slack time.Duration) News {
	text := fmt.Sprintf("%d pods: %d graceful, %d truncated, %d forced, %d left", p.Total, p.Graceful, p.Truncated, p.Forced, p.Left)
	if slack != 0 {
		text += fmt.Sprintf("; slack %.0f s", slack.Seconds())
	}
	if p.Refusal != "" {
		text += "; last refusal: " + p.Refusal
	}
	n := newNews(node, recordOf(node), Outcome, reason, text)
	n.Warning = reason != ReasonDrained || p.Left+p.Forced+p.Truncated > 0
	n.Pods, n.Slack = p, slack
	return n
}

// Canceled: the interruption was cancelled, and what it had set on the node is undone.
func Canceled(node *corev1.Node, r interruption.Record) News {
	what := string(r.Kind) + " cancelled"
	if r.Returns() {
		what = "put off"
	}
	return newNews(node, r, Outcome, ReasonCanceled, what+"; node as it was before")
}

// Returned: the instance has come back, or its rehearsal is over, and what was set on the node is
// undone.
func Returned(node *corev1.Node, r interruption.Record) News {
	if r.Rehearsed() {
		return newNews(node, r, Outcome, ReasonRehearsalOver, fmt.Sprintf("%s is over; node as it was before", r.Kind))
	}
	text := fmt.Sprintf("instance %s is back after %s; node as it was before", r.Instance, r.Kind)
	return newNews(node, r, Outcome, ReasonInstanceReturned, text)
}

// Unreadable: the annotation holds something that is not a record.
func Unreadable(node *corev1.Node, err error) News {
	text := fmt.Sprintf("annotation %s is not acted on: %v", interruption.Annotation, err)
	return warning(node, interruption.Record{}, "", ReasonRecordUnreadable, text)
}
