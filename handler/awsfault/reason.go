package awsfault

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

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
	"KmsAccessDenied": Encryption, "KMS.AccessDeniedException": Encryption,
	"KmsDisabled": Encryption, "KMS.DisabledException": Encryption,
	"KmsInvalidKeyUsage": Encryption, "KMS.InvalidKeyUsageException": Encryption,
	"KmsInvalidState": Encryption, "KMS.InvalidStateException": Encryption,
	"KmsNotFound": Encryption, "KMS.NotFoundException": Encryption,
	"KmsOptInRequired": Encryption, "KMS.OptInRequired": Encryption,
}

// reasonOf tells from the SDK's error why the call failed: by the service's code, else by
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
