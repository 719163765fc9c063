package queue

import (
	"fmt"
)

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
