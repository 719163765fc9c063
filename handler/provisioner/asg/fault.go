package asg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
)

// result says what came of a call; it is a label's value.
type result string

const (
	resultOK          result = "ok"
	resultDenied      result = "access_denied"
	resultCredentials result = "credentials" // there are none, or they are not valid
	resultThrottled   result = "throttled"
	resultInvalid     result = "invalid" // the service would refuse it again
	resultOther       result = "failed"  // timeouts, the service's own failures, ...
)

func results() []result {
	return []result{resultOK, resultDenied, resultCredentials, resultThrottled, resultInvalid, resultOther}
}

// The codes of errors that say what to do; all others are tried again.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
var codes = map[string]result{
	"AccessDenied": resultDenied, "AccessDeniedException": resultDenied, "NotAuthorized": resultDenied,
	"UnauthorizedOperation": resultDenied, "OptInRequired": resultDenied,

	"AuthFailure": resultCredentials, "ExpiredToken": resultCredentials, "ExpiredTokenException": resultCredentials,
	"IncompleteSignature": resultCredentials, "InvalidAccessKeyId": resultCredentials, "InvalidClientTokenId": resultCredentials,
	"MissingAuthenticationToken": resultCredentials, "SignatureDoesNotMatch": resultCredentials, "UnrecognizedClientException": resultCredentials,

	"ValidationError": resultInvalid, "InvalidParameterValue": resultInvalid, "InvalidParameterCombination": resultInvalid,
	"InvalidInstanceID.NotFound": resultInvalid, "InvalidInstanceID.Malformed": resultInvalid,
	"OperationNotPermitted": resultInvalid, "UnsupportedOperation": resultInvalid, "IncorrectInstanceState": resultInvalid,
}

// fault is an error of a call with what came of it.
type fault struct {
	action string
	result result
	err    error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

func classify(service, action string, err error) error {
	if err == nil {
		return nil
	}
	f := &fault{action: service + ":" + action, result: resultOther}
	if otherCall(err, action) {
		f.result = resultCredentials // such as STS, which refused us a role
	} else if api, ok := errors.AsType[smithy.APIError](err); ok {
		if _, throttled := retry.DefaultThrottleErrorCodes[api.ErrorCode()]; throttled {
			f.result = resultThrottled
		} else if r, known := codes[api.ErrorCode()]; known {
			f.result = r
		}
	} else if _, ok := errors.AsType[*credentialError](err); ok {
		f.result = resultCredentials
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

func resultOf(err error) result {
	if err == nil {
		return resultOK
	}
	if f, ok := errors.AsType[*fault](err); ok {
		return f.result
	}
	return resultOther
}

// hopeless gives the reason why a call would fail for every node, until somebody
// changes the role.
func hopeless(err error) (reason string, ok bool) {
	f, isFault := errors.AsType[*fault](err)
	switch {
	case !isFault:
		return "", false
	case f.result == resultDenied:
		return "not allowed to call " + f.action, true
	case f.result == resultCredentials:
		return "no valid AWS credentials to call " + f.action, true
	}
	return "", false
}

// invalid reports whether the service would refuse the call again.
func invalid(err error) bool { return resultOf(err) == resultInvalid }

// saying is the service's own text of an error.
func saying(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return api.ErrorMessage()
	}
	return err.Error()
}

// callTimeout bounds one call: the service answers within a second or two.
const callTimeout = 10 * time.Second

// call makes one call within callTimeout and counts it.
func (b *Backend) call(ctx context.Context, service, action string, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := classify(service, action, do(bounded))
	if ctx.Err() == nil {
		b.metrics.calls.WithLabelValues(action, string(resultOf(err))).Inc()
	}
	if err == nil {
		b.denials.clear(service + ":" + action)
	} else if reason, ok := hopeless(err); ok && b.denials.first(service+":"+action, reason) {
		b.log.Warn().Err(err).Str("reason", reason).Msg("no replacement through Auto Scaling groups")
	}
	return err
}

// denials remembers what may not be called, so that it is reported once and not called
// for each node.
type denials struct {
	mu   sync.Mutex
	seen map[string]denial // by action
}

type denial struct {
	reason string
	until  time.Time
}

func (d *denials) first(action, reason string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, again := d.seen[action]
	if d.seen == nil {
		d.seen = map[string]denial{}
	}
	d.seen[action] = denial{reason: reason, until: time.Now().Add(refusedFor)}
	return !again
}

func (d *denials) clear(action string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.seen, action)
}

// standing is the reason why an action is not worth a call now, or "".
func (d *denials) standing(action string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.seen[action]; time.Now().Before(s.until) {
		return s.reason
	}
	return ""
}
