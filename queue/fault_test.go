package queue

import (
	"errors"
	"net/http"
	"strings"
	"testing"

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

func TestErrorNamesCallAndQueue(t *testing.T) {
	err := classify("receive from", "sqs:ReceiveMessage", testQueue, apiError("AccessDenied"))
	for _, want := range []string{"receive from queue " + testQueue, "access denied", "sqs:ReceiveMessage"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}
