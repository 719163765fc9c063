package queue

import (
	"fmt"

	"spot-handler/handler/awsfault"
)

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
