// Package awsfault says what an error of a call to AWS means for whoever called: whether
// to try again, or that it is of no use until somebody changes the role.
package awsfault

import (
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
)

// Result says what came of a call; it is a label's value.
type Result string

const (
	OK          Result = "ok"
	Denied      Result = "access_denied"
	Credentials Result = "credentials" // there are none, or they are not valid
	Throttled   Result = "throttled"
	Refused     Result = "invalid" // the service would refuse it again
	Other       Result = "failed"  // timeouts, the service's own failures, ...
)

// Results lists every result.
func Results() []Result { return []Result{OK, Denied, Credentials, Throttled, Refused, Other} }

// The codes of errors that say what to do; all others are tried again.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
var codes = map[string]Result{
	"AccessDenied": Denied, "AccessDeniedException": Denied, "NotAuthorized": Denied,
	"UnauthorizedOperation": Denied, "OptInRequired": Denied,

	"AuthFailure": Credentials, "ExpiredToken": Credentials, "ExpiredTokenException": Credentials,
	"IncompleteSignature": Credentials, "InvalidAccessKeyId": Credentials, "InvalidClientTokenId": Credentials,
	"MissingAuthenticationToken": Credentials, "SignatureDoesNotMatch": Credentials, "UnrecognizedClientException": Credentials,

	"ValidationError": Refused, "InvalidParameterValue": Refused, "InvalidParameterCombination": Refused,
	"InvalidInstanceID.NotFound": Refused, "InvalidInstanceID.Malformed": Refused,
	"OperationNotPermitted": Refused, "UnsupportedOperation": Refused, "IncorrectInstanceState": Refused,
}

// Fault is an error of a call with what came of it.
type Fault struct {
	action string // as IAM names it
	result Result
	err    error
}

func (f *Fault) Error() string { return f.err.Error() }
func (f *Fault) Unwrap() error { return f.err }

// Classify wraps an error of service:action in a [Fault]; nil stays nil.
func Classify(service, action string, err error) error {
	if err == nil {
		return nil
	}
	f := &Fault{action: service + ":" + action, result: Other}
	if otherCall(err, action) {
		f.result = Credentials // such as STS, which refused us a role
	} else if api, ok := errors.AsType[smithy.APIError](err); ok {
		if _, throttled := retry.DefaultThrottleErrorCodes[api.ErrorCode()]; throttled {
			f.result = Throttled
		} else if r, known := codes[api.ErrorCode()]; known {
			f.result = r
		}
	}
	f.err = fmt.Errorf("call %s: %w", f.action, err)
	return f
}

// otherCall reports whether the call failed in another that it needed first.
func otherCall(err error, action string) bool {
	for {
		op, ok := errors.AsType[*smithy.OperationError](err)
		if !ok {
			return false
		}
		if op.Operation() != action {
			return true
		}
		err = op.Err
	}
}

// Of is the result of a classified error.
func Of(err error) Result {
	if err == nil {
		return OK
	}
	if f, ok := errors.AsType[*Fault](err); ok {
		return f.result
	}
	return Other
}

// Hopeless gives the reason why a call would fail every time, until somebody changes the
// role.
func Hopeless(err error) (reason string, ok bool) {
	f, isFault := errors.AsType[*Fault](err)
	switch {
	case !isFault:
		return "", false
	case f.result == Denied:
		return "not allowed to call " + f.action, true
	case f.result == Credentials:
		return "no valid AWS credentials to call " + f.action, true
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
