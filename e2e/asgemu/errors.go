package asgemu

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"strings"
)

// apiError is an error of either service.
type apiError struct {
	status        int
	code, message string
}

func invalid(format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, "ValidationError", fmt.Sprintf(format, args...)}
}

func noInstances(ids []string) *apiError {
	text := "The instance ID '%s' does not exist"
	if len(ids) > 1 {
		text = "The instance IDs '%s' do not exist"
	}
	return &apiError{http.StatusBadRequest, "InvalidInstanceID.NotFound", fmt.Sprintf(text, strings.Join(ids, ", "))}
}

// Each service has its own names for the same failures.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
func (svc service) denied(action string) *apiError {
	if svc == ec2 {
		return &apiError{http.StatusForbidden, "UnauthorizedOperation", "You are not authorized to perform this operation. User: " +
			user + " is not authorized to perform: ec2:" + action + " because no identity-based policy allows the ec2:" + action + " action"}
	}
	return &apiError{http.StatusForbidden, "AccessDenied", "User: " + user + " is not authorized to perform: autoscaling:" + action +
		" because no identity-based policy allows the autoscaling:" + action + " action"}
}

func (svc service) throttled() *apiError {
	if svc == ec2 {
		return &apiError{http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded."}
	}
	return &apiError{http.StatusBadRequest, "Throttling", "Rate exceeded"}
}

func (svc service) unavailable() *apiError {
	if svc == ec2 {
		return &apiError{http.StatusServiceUnavailable, "Unavailable", "The service is unavailable. Please try again shortly."}
	}
	return &apiError{http.StatusServiceUnavailable, "ServiceUnavailable", "Service is unavailable. Please try again."}
}

const user = "arn:aws:iam::123456789012:user/emulated"

// write answers in the service's own format.
func (e *apiError) write(w http.ResponseWriter, svc service) {
	kind := "Sender"
	if e.status >= http.StatusInternalServerError {
		kind = "Receiver"
	}
	w.WriteHeader(e.status)
	type body struct {
		Type    string `xml:",omitempty"`
		Code    string
		Message string
	}
	if svc == ec2 {
		encode(w, struct {
			XMLName   xml.Name `xml:"Response"`
			Errors    []body   `xml:"Errors>Error"`
			RequestID string
		}{Errors: []body{{Code: e.code, Message: e.message}}, RequestID: requestID()})
		return
	}
	encode(w, struct {
		XMLName   xml.Name
		Error     body
		RequestID string `xml:"RequestId"`
	}{XMLName: xml.Name{Space: namespace, Local: "ErrorResponse"}, Error: body{kind, e.code, e.message}, RequestID: requestID()})
}
