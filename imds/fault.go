package imds

import (
	"errors"
	"fmt"
	"net/http"

	smithyhttp "github.com/aws/smithy-go/transport/http"

	"spot-handler/handler/awsfault"
)

// The reasons that only this package knows.
const (
	reasonTokenTimeout  awsfault.Reason = "token_timeout"  // no answer to the token request
	reasonToken         awsfault.Reason = "token"          // the token request was refused
	reasonUnauthorized  awsfault.Reason = "unauthorized"   // 401: the token is not valid any more
	reasonForbidden     awsfault.Reason = "forbidden"      // 403: the service is switched off
	reasonStatus        awsfault.Reason = "status"         // any other status
	reasonTooLarge      awsfault.Reason = "too_large"      // more than maxBody
	reasonMalformed     awsfault.Reason = "malformed"      // not what is documented
	reasonUnknownAction awsfault.Reason = "unknown_action" // an action that is not documented
	reasonUnknownState  awsfault.Reason = "unknown_state"  // a state of a scheduled event that is not documented
)

func reasons() []awsfault.Reason {
	return []awsfault.Reason{
		reasonTokenTimeout, reasonToken, reasonUnauthorized, reasonForbidden, awsfault.Throttled, awsfault.Unavailable,
		reasonStatus, awsfault.Timeout, awsfault.Connection, reasonTooLarge, reasonMalformed, reasonUnknownAction,
		reasonUnknownState, awsfault.Other,
	}
}

func fault(reason awsfault.Reason, format string, args ...any) error {
	return &awsfault.Fault{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// usable reports whether the reading is good in spite of the error: it said all that
// matters, in a way that somebody should look at.
func usable(err error) bool {
	r := awsfault.Of(err)
	return r == reasonUnknownAction || r == reasonUnknownState
}

var errTooLarge = fmt.Errorf("answer is larger than %d bytes", maxBody)

// notFound reports a 404 of the path itself. A 404 of the token request does not show, as
// the SDK hides what is below its token errors.
func notFound(err error) bool {
	r, ok := errors.AsType[*smithyhttp.ResponseError](err)
	return ok && r.HTTPStatusCode() == http.StatusNotFound
}

// classify names the call and finds the reason. The SDK's errors about tokens and 401s do
// not unwrap, so what the last exchange saw comes first. Without an observer there is only
// the error.
func classify(path string, err error, last *exchange) error {
	reason := awsfault.Other
	switch r, ok := errors.AsType[*smithyhttp.ResponseError](err); {
	case errors.Is(err, errTooLarge) || errors.Is(last.err, errTooLarge):
		reason = reasonTooLarge
	case last.err != nil && awsfault.Of(last.err) == awsfault.Timeout:
		reason = awsfault.Timeout
	case last.err != nil:
		reason = awsfault.Connection
	case last.status >= http.StatusMultipleChoices:
		reason = statusReason(last.status)
	case ok:
		reason = statusReason(r.HTTPStatusCode())
	case awsfault.Of(err) == awsfault.Timeout, awsfault.Of(err) == awsfault.Connection:
		reason = awsfault.Of(err)
	case last.token: // answered, but in a way that the SDK could not read
		reason = reasonToken
	}

	if last.token {
		switch reason {
		case awsfault.Timeout:
			return fault(reasonTokenTimeout, "read %s: fetch token: no answer; the pod likely needs hostNetwork, "+
				"or the instance a metadata response hop limit of 2: %w", path, err)
		case reasonUnauthorized, reasonStatus:
			reason = reasonToken
		}
		return fault(reason, "read %s: fetch token: %w", path, err)
	}
	return fault(reason, "read %s: %w", path, err)
}

// statusReason differs from what a status means elsewhere at AWS: a 401 is about the token,
// and with a 403 the instance's owner has switched the service off.
func statusReason(status int) awsfault.Reason {
	switch {
	case status == http.StatusUnauthorized:
		return reasonUnauthorized
	case status == http.StatusForbidden:
		return reasonForbidden
	case status == http.StatusTooManyRequests:
		return awsfault.Throttled
	case status >= http.StatusInternalServerError:
		return awsfault.Unavailable
	}
	return reasonStatus
}
