package imds

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// A reason says why a reading failed; it is a label's value.
type reason string

const (
	reasonTokenTimeout  reason = "token_timeout"  // no answer to the token request
	reasonToken         reason = "token"          // the token request was refused
	reasonUnauthorized  reason = "unauthorized"   // 401: the token is not valid any more
	reasonForbidden     reason = "forbidden"      // 403: the service is switched off
	reasonThrottled     reason = "throttled"      // 429
	reasonUnavailable   reason = "unavailable"    // 5xx
	reasonStatus        reason = "status"         // any other status
	reasonTimeout       reason = "timeout"        // no answer, or not to its end
	reasonConnection    reason = "connection"     // refused, reset, no route
	reasonTooLarge      reason = "too_large"      // more than maxBody
	reasonMalformed     reason = "malformed"      // not what is documented
	reasonUnknownAction reason = "unknown_action" // an action that is not documented
	reasonUnknownState  reason = "unknown_state"  // a state of a scheduled event that is not documented
	reasonOther         reason = "other"
)

func reasons() []reason {
	return []reason{
		reasonTokenTimeout, reasonToken, reasonUnauthorized, reasonForbidden, reasonThrottled, reasonUnavailable,
		reasonStatus, reasonTimeout, reasonConnection, reasonTooLarge, reasonMalformed, reasonUnknownAction,
		reasonUnknownState, reasonOther,
	}
}

// A fault is an error with its reason.
type fault struct {
	reason reason
	err    error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

// reasonOf is empty for a nil error.
func reasonOf(err error) reason {
	if err == nil {
		return ""
	}
	if f, ok := errors.AsType[*fault](err); ok {
		return f.reason
	}
	return reasonOther
}

// usable reports whether the reading is a good one all the same: it said all that matters,
// in a way that somebody should look at.
func usable(err error) bool {
	r := reasonOf(err)
	return r == reasonUnknownAction || r == reasonUnknownState
}

var errTooLarge = fmt.Errorf("answer is larger than %d bytes", maxBody)

// notFound reports a 404 of the path itself. A 404 of the token request does not
// look like one, as the SDK hides what is below its token errors.
func notFound(err error) bool {
	r, ok := errors.AsType[*smithyhttp.ResponseError](err)
	return ok && r.HTTPStatusCode() == http.StatusNotFound
}

// classify names the call and finds the reason. The SDK's errors about tokens and
// 401s do not unwrap, so what the last exchange saw on the wire comes first; a
// client that was not made by NewClient leaves only the error.
func classify(path string, err error, last *exchange) error {
	reason := reasonOther
	if errors.Is(err, errTooLarge) || errors.Is(last.err, errTooLarge) {
		reason = reasonTooLarge
	} else if last.err != nil {
		reason = transportReason(last.err)
	} else if last.status >= http.StatusMultipleChoices {
		reason = statusReason(last.status)
	} else if r, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		reason = statusReason(r.HTTPStatusCode())
	} else if timedOut(err) {
		reason = reasonTimeout
	} else if _, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		reason = reasonConnection
	} else if last.token { // answered, but in a way that the SDK could not read
		reason = reasonToken
	}

	if last.token {
		switch {
		case reason == reasonTimeout:
			return &fault{reasonTokenTimeout, fmt.Errorf("read %s: fetch token: no answer; the pod likely needs hostNetwork, "+
				"or the instance a metadata response hop limit of 2: %w", path, err)}
		case reason == reasonUnauthorized, reason == reasonStatus:
			reason = reasonToken
		}
		return &fault{reason, fmt.Errorf("read %s: fetch token: %w", path, err)}
	}
	return &fault{reason, fmt.Errorf("read %s: %w", path, err)}
}

func statusReason(status int) reason {
	switch {
	case status == http.StatusUnauthorized:
		return reasonUnauthorized
	case status == http.StatusForbidden:
		return reasonForbidden
	case status == http.StatusTooManyRequests:
		return reasonThrottled
	case status >= http.StatusInternalServerError:
		return reasonUnavailable
	}
	return reasonStatus
}

func transportReason(err error) reason {
	if timedOut(err) {
		return reasonTimeout
	}
	return reasonConnection
}

func timedOut(err error) bool {
	n, ok := errors.AsType[net.Error](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && n.Timeout()
}

// quiet is for how long a reason is not logged again when it comes and goes.
const quiet = time.Minute

// A reporter tells news from more of the same: a fault is logged when its reason
// changes. The zero value is ready.
type reporter struct {
	last  reason
	said  map[reason]time.Time
	owing bool // a fault was logged whose end was not
}

func (r *reporter) changed(now reason) bool {
	if r.last == now {
		return false
	}
	r.last = now
	if t, ok := r.said[now]; ok && time.Since(t) < quiet {
		return false
	}
	if r.said == nil {
		r.said = make(map[reason]time.Time)
	}
	r.said[now] = time.Now()
	r.owing = true
	return true
}

func (r *reporter) recovered() bool {
	owing := r.owing
	r.last, r.owing = "", false
	return owing
}
