package awsfault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

func apiError(code string) error {
	return operation("SQS", &smithy.GenericAPIError{Code: code, Message: "no"})
}

func operation(service string, err error) error {
	return &smithy.OperationError{ServiceID: service, OperationName: "Call", Err: err}
}

func status(code int) error {
	return &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: &http.Response{StatusCode: code}}, Err: errors.New("no")}
}

func TestReasons(t *testing.T) {
	tests := []struct {
		err  error
		want Reason
	}{
		{apiError("AccessDenied"), Denied},
		{apiError("AccessDeniedException"), Denied},
		{operation("SQS", &types.QueueDoesNotExist{}), NoQueue},
		{operation("SQS", &types.RequestThrottled{}), Throttled},
		{apiError("ThrottlingException"), Throttled},
		{apiError("ExpiredToken"), Credentials},
		{apiError("InvalidClientTokenId"), Credentials},
		{operation("SQS", fmt.Errorf("get credentials: %w", operation("STS", &smithy.GenericAPIError{Code: "AccessDenied"}))), Credentials},
		{operation("SQS", &types.KmsAccessDenied{}), Encryption},
		{operation("SQS", status(503)), Unavailable},
		{operation("SQS", status(403)), Denied},
		{operation("SQS", status(429)), Throttled},
		{operation("SQS", &smithyhttp.RequestSendError{Err: errors.New("refused")}), Connection},
		{operation("SQS", &smithyhttp.RequestSendError{Err: context.DeadlineExceeded}), Timeout},
		{apiError("UnauthorizedOperation"), Denied},
		{apiError("InvalidInstanceID.NotFound"), Refused},
		{apiError("ResourceContention"), Other},
		{errors.New("access denied, throttled, timeout"), Other}, // texts do not count
	}
	for _, tt := range tests {
		if got := Of(tt.err); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.err, got, tt.want)
		}
	}
}
