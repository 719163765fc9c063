// Package awsfault says what a failed call to AWS means: why it failed, whether it is any
// use to try again, and whether that is news. Everything that calls AWS shares it, so the
// same answer means the same everywhere.
package awsfault

import (
	"errors"
	"fmt"

	"github.com/aws/smithy-go"
)

// A Reason says why a call failed; it is a label's value. Packages add reasons of their own.
type Reason string

const (
	Denied      Reason = "access_denied"
	Credentials Reason = "credentials" // there are none, or they are not valid
	Throttled   Reason = "throttled"
	Refused     Reason = "invalid" // the service would refuse it again
	NoQueue     Reason = "no_queue"
	Encryption  Reason = "encryption"  // the queue's key cannot be used
	Unavailable Reason = "unavailable" // the service's own failure
	Timeout     Reason = "timeout"
	Connection  Reason = "connection" // refused, reset, no route
	Other       Reason = "other"
)

// A Fault is an error with its reason.
type Fault struct {
	Reason Reason
	Action string // of AWS, as IAM names it; empty where the fault is not about a call
	Err    error
}

func (f *Fault) Error() string { return f.Err.Error() }
func (f *Fault) Unwrap() error { return f.Err }

// Classify wraps an error of service:action in a [Fault]; nil stays nil.
func Classify(service, action string, err error) error {
	if err == nil {
		return nil
	}
	name := service + ":" + action
	return &Fault{reasonOf(err), name, fmt.Errorf("call %s: %w", name, err)}
}

// Of is the reason of an error: that of the [Fault] in it, else what the SDK's error says;
// empty for nil.
func Of(err error) Reason {
	if err == nil {
		return ""
	}
	if f, ok := errors.AsType[*Fault](err); ok {
		return f.Reason
	}
	return reasonOf(err)
}

// Hopeless gives the reason why a call would fail every time, until somebody changes the
// role.
func Hopeless(err error) (reason string, ok bool) {
	f, isFault := errors.AsType[*Fault](err)
	switch {
	case !isFault:
		return "", false
	case f.Reason == Denied:
		return "not allowed to call " + f.Action, true
	case f.Reason == Credentials:
		return "no valid AWS credentials to call " + f.Action, true
	}
	return "", false
}

// Saying is the service's own text of an error.
func Saying(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return api.ErrorMessage()
	}
	return err.Error()
}

// The results of calls that counters tell apart beside reasons.
const (
	resultOK     = "ok"
	resultFailed = "failed" // timeouts, the service's own failures, ...
)

// Results lists what [Result] can return.
func Results() []string {
	return []string{resultOK, string(Denied), string(Credentials), string(Throttled), string(Refused), resultFailed}
}

// Result is what came of a call, as the value of a counter's label.
func Result(err error) string {
	switch r := Of(err); r {
	case "":
		return resultOK
	case Denied, Credentials, Throttled, Refused:
		return string(r)
	}
	return resultFailed
}
