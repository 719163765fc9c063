// Package awsfault says what a failed call to AWS means: why it failed, whether it is any
// use to try again, and whether that is news. Everything that calls AWS shares it, so the
// same answer means the same everywhere. It also keeps the SDK from losing answers that begin
// early, see [PlainBody].
package awsfault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
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

// codes are the errors' codes that say why a call failed, beside those that the SDK knows
// as throttling.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/CommonErrors.html
var codes = map[string]Reason{
	"AccessDenied": Denied, "AccessDeniedException": Denied, "NotAuthorized": Denied,
	"UnauthorizedOperation": Denied, "OptInRequired": Denied,

	"AuthFailure": Credentials, "ExpiredToken": Credentials, "ExpiredTokenException": Credentials,
	"IncompleteSignature": Credentials, "IncompleteSignatureException": Credentials,
	"InvalidAccessKeyId": Credentials, "InvalidClientTokenId": Credentials,
	"InvalidSecurity": Credentials, "InvalidSignatureException": Credentials,
	"MissingAuthenticationToken": Credentials, "MissingAuthenticationTokenException": Credentials,
	"SignatureDoesNotMatch": Credentials, "UnrecognizedClientException": Credentials,

	"ValidationError": Refused, "InvalidParameterValue": Refused, "InvalidParameterCombination": Refused,
	"InvalidInstanceID.NotFound": Refused, "InvalidInstanceID.Malformed": Refused,
	"OperationNotPermitted": Refused, "UnsupportedOperation": Refused, "IncorrectInstanceState": Refused,

	// SQS has a name of each in either of its protocols.
	"QueueDoesNotExist": NoQueue, "AWS.SimpleQueueService.NonExistentQueue": NoQueue,
	"KmsThrottled": Throttled, "KMS.ThrottlingException": Throttled,
}

// reasonOf finds in the SDK's error why the call failed: by the service's code, else by
// the status, else by what became of the connection. Texts do not count.
func reasonOf(err error) Reason {
	if otherCall(err) {
		return Credentials // such as STS, which refused us a role
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		if _, throttled := retry.DefaultThrottleErrorCodes[api.ErrorCode()]; throttled {
			return Throttled
		}
		if r, known := codes[api.ErrorCode()]; known {
			return r
		}
		if strings.HasPrefix(strings.ToUpper(api.ErrorCode()), "KMS") { // whatever it is that the key's service says
			return Encryption
		}
	}
	if r, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		switch status := r.HTTPStatusCode(); {
		case status == http.StatusTooManyRequests:
			return Throttled
		case status == http.StatusForbidden:
			return Denied
		case status >= http.StatusInternalServerError:
			return Unavailable
		}
	}
	if n, ok := errors.AsType[net.Error](err); ok && n.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return Timeout
	}
	if _, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		return Connection
	}
	return Other
}

// otherCall reports whether the call failed in a call to another service that it needed
// first.
func otherCall(err error) bool {
	outer, ok := errors.AsType[*smithy.OperationError](err)
	if !ok {
		return false
	}
	inner, ok := errors.AsType[*smithy.OperationError](outer.Err)
	return ok && inner.Service() != outer.Service()
}

// PlainBody is an API option of SDK clients. It hides that a request's body can write itself
// (io.WriterTo), so net/http reads it instead. The SDK closes a body when the answer begins.
// One that writes itself then fails with io.EOF, and net/http closes the connection: the
// answer is lost unless the client has already seen the body's end. On a busy machine that
// was one call in thousands, and the messages of a receive that ends like this stay hidden
// for the visibility timeout.
// https://github.com/aws/smithy-go/blob/v1.28.8/transport/http/internal/io/safe.go
func PlainBody(stack *middleware.Stack) error {
	return stack.Build.Add(middleware.BuildMiddlewareFunc("PlainBody", plainBody), middleware.After)
}

func plainBody(ctx context.Context, in middleware.BuildInput, next middleware.BuildHandler) (
	out middleware.BuildOutput, metadata middleware.Metadata, err error,
) {
	request, ok := in.Request.(*smithyhttp.Request)
	if !ok {
		return next.HandleBuild(ctx, in)
	}
	if body, ok := request.GetStream().(io.ReadSeeker); ok {
		plain, err := request.SetStream(struct{ io.ReadSeeker }{body})
		if err != nil {
			return out, metadata, fmt.Errorf("set body of request: %w", err)
		}
		in.Request = plain
	}
	return next.HandleBuild(ctx, in)
}
