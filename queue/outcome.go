package queue

import "spot-handler/handler/interruption"

// An outcome is what became of a message; it is a label's value.
type outcome string

const (
	outcomeAccepted    outcome = "accepted"
	outcomeDuplicate   outcome = "duplicate"
	outcomeForeign     outcome = "foreign" // no Node of this cluster, even on a second look
	outcomeStale       outcome = "stale"
	outcomeIgnored     outcome = "ignored"
	outcomeCompleted   outcome = "completed" // no Node to drain, its lifecycle hook completed
	outcomeUnmanaged   outcome = "unmanaged" // opted out, or without the tag that --managed-tag asks for
	outcomeMalformed   outcome = "malformed"
	outcomeUnsupported outcome = "unsupported"
	outcomeFailed      outcome = "failed" // could not be accepted in time
)

func outcomes() []outcome {
	return []outcome{
		outcomeAccepted, outcomeDuplicate, outcomeForeign, outcomeStale, outcomeIgnored, outcomeCompleted, outcomeUnmanaged,
		outcomeMalformed, outcomeUnsupported, outcomeFailed,
	}
}

func outcomeOf(v interruption.Verdict) outcome {
	switch v {
	case interruption.Duplicate:
		return outcomeDuplicate
	case interruption.Stale:
		return outcomeStale
	case interruption.Ignored:
		return outcomeIgnored
	case interruption.Completed:
		return outcomeCompleted
	case interruption.Unmanaged:
		return outcomeUnmanaged
	case interruption.Unknown:
		return outcomeForeign
	}
	return outcomeAccepted
}
