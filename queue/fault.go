package queue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// A reason says why a call failed; it is a label's value.
type reason string

const (
	reasonAccessDenied reason = "access_denied"
	reasonCredentials  reason = "credentials" // there are none, or they are not valid
	reasonNoQueue      reason = "no_queue"
	reasonThrottled    reason = "throttled"
	reasonEncryption   reason = "encryption" // the queue's key cannot be used
	reasonUnavailable  reason = "unavailable"
	reasonTimeout      reason = "timeout"
	reasonConnection   reason = "connection"
	reasonEntry        reason = "batch_entry" // one message of a batch was refused for good
	reasonOther        reason = "other"

	// These two are no faults of the source, and not counted: the Accepter's, and that a
	// message in work is not in flight any more.
	reasonAccept reason = "accept"
	reasonGone   reason = "gone"
)

func reasons() []reason {
	return []reason{
		reasonAccessDenied, reasonCredentials, reasonNoQueue, reasonThrottled, reasonEncryption,
		reasonUnavailable, reasonTimeout, reasonConnection, reasonEntry, reasonOther,
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

// hopeless reports whether another attempt for this message would fare no better.
func hopeless(err error) bool {
	r := reasonOf(err)
	return r == reasonEntry || r == reasonGone
}

// classify names the call and the queue, finds the reason, and says what to do
// where that is known.
func classify(call, action, queue string, err error) error {
	reason := reasonFor(err)
	switch reason {
	case reasonAccessDenied:
		return &fault{reason, fmt.Errorf("%s queue %s: access denied; the role and the queue's policy have to allow %s: %w", call, queue, action, err)}
	case reasonCredentials:
		return &fault{reason, fmt.Errorf("%s queue %s: no valid credentials: %w", call, queue, err)}
	case reasonNoQueue:
		return &fault{reason, fmt.Errorf("%s queue %s: it does not exist in this region and account: %w", call, queue, err)}
	}
	return &fault{reason, fmt.Errorf("%s queue %s: %w", call, queue, err)}
}

func entryError(call, queue, code, text string) error {
	return fmt.Errorf("%s queue %s: one message: %s %s", call, queue, code, text)
}

// credentialCodes are the answers to a request that is not validly signed.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/CommonErrors.html
var credentialCodes = map[string]bool{
	"ExpiredToken": true, "ExpiredTokenException": true,
	"IncompleteSignature": true, "IncompleteSignatureException": true,
	"InvalidAccessKeyId": true, "InvalidClientTokenId": true,
	"InvalidSecurity": true, "InvalidSignatureException": true,
	"MissingAuthenticationToken": true, "MissingAuthenticationTokenException": true,
	"SignatureDoesNotMatch": true, "UnrecognizedClientException": true,
}

// deniedCodes are the answers to a request that its signer may not make.
var deniedCodes = map[string]bool{
	"AccessDenied": true, "AccessDeniedException": true, "NotAuthorized": true, "OptInRequired": true,
	"UnauthorizedOperation": true,
}

// encryptionCodes are SQS's names for what can be wrong with the queue's KMS key.
var encryptionCodes = map[string]bool{
	"KmsAccessDenied": true, "KmsDisabled": true, "KmsInvalidKeyUsage": true, "KmsInvalidState": true,
	"KmsNotFound": true, "KmsOptInRequired": true,
	"KMS.AccessDeniedException": true, "KMS.DisabledException": true, "KMS.InvalidKeyUsageException": true,
	"KMS.InvalidStateException": true, "KMS.NotFoundException": true, "KMS.OptInRequired": true,
}

func reasonFor(err error) reason {
	if otherService(err) {
		return reasonCredentials // such as STS, which refused us a role
	}
	if _, ok := errors.AsType[*types.QueueDoesNotExist](err); ok {
		return reasonNoQueue
	}
	if _, ok := errors.AsType[*types.KmsThrottled](err); ok {
		return reasonThrottled
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		code := api.ErrorCode()
		_, throttled := retry.DefaultThrottleErrorCodes[code]
		switch {
		case throttled:
			return reasonThrottled
		case credentialCodes[code]:
			return reasonCredentials
		case deniedCodes[code]:
			return reasonAccessDenied
		case encryptionCodes[code]:
			return reasonEncryption
		}
	}
	if r, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		switch status := r.HTTPStatusCode(); {
		case status == http.StatusTooManyRequests:
			return reasonThrottled
		case status == http.StatusForbidden:
			return reasonAccessDenied
		case status >= http.StatusInternalServerError:
			return reasonUnavailable
		}
	}
	if n, ok := errors.AsType[net.Error](err); ok && n.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return reasonTimeout
	}
	if _, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		return reasonConnection
	}
	return reasonOther
}

// otherService reports whether the call failed in a call to another service that it
// needed first.
func otherService(err error) bool {
	for {
		op, ok := errors.AsType[*smithy.OperationError](err)
		if !ok {
			return false
		}
		if op.Service() != sqs.ServiceID {
			return true
		}
		err = op.Err
	}
}
