package queue

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

// An outcome is what became of a message; it is a label's value.
type outcome string

// The outcomes beside the verdicts on notices.
const (
	outcomeForeign     outcome = "foreign" // no Node of this cluster, even when received again
	outcomeMalformed   outcome = "malformed"
	outcomeUnsupported outcome = "unsupported"
	outcomeFailed      outcome = "failed" // could not be accepted in time
)

func outcomes() []outcome {
	all := []outcome{outcomeMalformed, outcomeUnsupported, outcomeFailed}
	for _, v := range interruption.Verdicts() {
		all = append(all, outcomeOf(v))
	}
	return all
}

func outcomeOf(v interruption.Verdict) outcome {
	if v == interruption.Unknown {
		return outcomeForeign
	}
	return outcome(v)
}

// A rejectReason says why a message cannot be used; it is a label's value.
type rejectReason string

const (
	rejectTooLarge   rejectReason = "too_large"
	rejectJSON       rejectReason = "json"        // not a JSON object, or an ambiguous one
	rejectField      rejectReason = "field"       // missing, empty or of the wrong type
	rejectTime       rejectReason = "time"        // no time, or an impossible one
	rejectInstanceID rejectReason = "instance_id" // cannot be an instance's id
	rejectDetailType rejectReason = "detail_type" // a kind that is not understood
	rejectSource     rejectReason = "source"      // not from the service that owns the kind
	rejectState      rejectReason = "state"       // a state or transition that is not understood
)

func rejectReasons() []rejectReason {
	return []rejectReason{
		rejectTooLarge, rejectJSON, rejectField, rejectTime, rejectInstanceID, rejectDetailType, rejectSource, rejectState,
	}
}

// A rejection is why a message cannot be used, and what that makes of it.
type rejection struct {
	outcome outcome // outcomeMalformed or outcomeUnsupported
	reason  rejectReason
	text    string
}

func (r *rejection) Error() string { return fmt.Sprintf("parse message: %s", r.text) }

func malformed(reason rejectReason, format string, args ...any) error {
	return &rejection{outcomeMalformed, reason, fmt.Sprintf(format, args...)}
}

// unsupported is for messages in which nothing is wrong.
func unsupported(reason rejectReason, format string, args ...any) error {
	return &rejection{outcomeUnsupported, reason, fmt.Sprintf(format, args...)}
}

// The reasons that only this package knows.
const (
	reasonEntry awsfault.Reason = "batch_entry" // one message of a batch was refused for good

	// These two are no faults of the source, and not counted: the Accepter's, and that a
	// message in work is not in flight any more.
	reasonAccept awsfault.Reason = "accept"
	reasonGone   awsfault.Reason = "gone"
)

func reasons() []awsfault.Reason {
	return []awsfault.Reason{
		awsfault.Denied, awsfault.Credentials, awsfault.NoQueue, awsfault.Throttled, awsfault.Encryption,
		awsfault.Unavailable, awsfault.Timeout, awsfault.Connection, reasonEntry, awsfault.Other,
	}
}

// final reports whether another attempt for this message would fare no better.
func final(err error) bool {
	r := awsfault.Of(err)
	return r == reasonEntry || r == reasonGone
}

// classify names the call and the queue, finds the reason, and says what to do
// where that is known.
func classify(call, permission, queue string, err error) error {
	f := &awsfault.Fault{Reason: awsfault.Of(err), Action: permission}
	where := call + " queue " + queue
	switch f.Reason {
	case awsfault.Denied:
		f.Err = fmt.Errorf("%s: access denied; the role and the queue's policy have to allow %s: %w", where, permission, err)
	case awsfault.Credentials:
		f.Err = fmt.Errorf("%s: no valid credentials: %w", where, err)
	case awsfault.NoQueue:
		f.Err = fmt.Errorf("%s: it does not exist in this region and account: %w", where, err)
	case awsfault.Refused: // our own calls do not vary: it is not known what is wrong
		f.Reason = awsfault.Other
		fallthrough
	default:
		f.Err = fmt.Errorf("%s: %w", where, err)
	}
	return f
}

func entryError(reason awsfault.Reason, call, queue, code, text string) error {
	return &awsfault.Fault{Reason: reason, Err: fmt.Errorf("%s queue %s: one message: %s %s", call, queue, code, text)}
}

type metrics struct {
	messagesTotal *prometheus.CounterVec
	rejectedTotal *prometheus.CounterVec
	age           prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		messagesTotal: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_messages_total",
			Help: "Messages by what became of them, each counted once, at its end.",
		}, []string{"outcome"}),
		rejectedTotal: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_messages_rejected_total",
			Help: "Messages that were malformed or unsupported, by what was found first.",
		}, []string{"reason"}),
		age: f.NewHistogram(prometheus.HistogramOpts{
			Name:                            "spot_handler_message_age_seconds",
			Help:                            "Time from EventBridge's stamp on a message to its receipt.",
			Buckets:                         []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 90, 120},
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  100,
			NativeHistogramMinResetDuration: time.Hour,
		}),
	}
	for _, o := range outcomes() {
		m.messages(o)
	}
	for _, r := range rejectReasons() {
		m.rejections(r)
	}
	return m
}

func (m *metrics) messages(o outcome) prometheus.Counter {
	return m.messagesTotal.WithLabelValues(string(o))
}

func (m *metrics) rejections(r rejectReason) prometheus.Counter {
	return m.rejectedTotal.WithLabelValues(string(r))
}
