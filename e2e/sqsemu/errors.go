package sqsemu

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

const (
	sqsShape    = "com.amazonaws.sqs#"
	commonShape = "com.amazon.coral.service#"
	// queryPrefix precedes most codes in the header that keeps the names of the older query protocol alive.
	queryPrefix = "AWS.SimpleQueueService."
)

// apiError is an error of the service in its wire format: a JSON body with the type and the message, and the code
// of the query protocol in a header, which is the code that the SDKs show.
type apiError struct {
	status  int
	shape   string // with its namespace
	query   string
	message string
}

func (e *apiError) Error() string { return e.query + ": " + e.message }

// code is the bare name of the error, as in the failed entries of a batch.
func (e *apiError) code() string { return e.shape[strings.LastIndexByte(e.shape, '#')+1:] }

func (e *apiError) write(w http.ResponseWriter) {
	fault := "Sender"
	if e.status >= http.StatusInternalServerError {
		fault = "Receiver"
	}
	w.Header().Set("X-Amzn-Query-Error", e.query+";"+fault)
	body, _ := json.Marshal(map[string]string{"__type": e.shape, "message": e.message})
	w.WriteHeader(e.status)
	_, _ = w.Write(body)
}

// modeled makes an error whose query code carries the service's prefix.
func modeled(code, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, sqsShape + code, queryPrefix + code, fmt.Sprintf(format, args...)}
}

func errQueueDoesNotExist() *apiError {
	e := modeled("QueueDoesNotExist", "The specified queue does not exist.")
	e.query = queryPrefix + "NonExistentQueue"
	return e
}

func errReceiptHandle(handle string) *apiError {
	e := modeled("ReceiptHandleIsInvalid", "The input receipt handle %q is not a valid receipt handle.", handle)
	e.query = "ReceiptHandleIsInvalid"
	return e
}

func errParameter(format string, args ...any) *apiError {
	return &apiError{
		http.StatusBadRequest, commonShape + "InvalidParameterValueException", "InvalidParameterValue", fmt.Sprintf(format, args...),
	}
}

func errMissing(parameter string) *apiError {
	return &apiError{
		http.StatusBadRequest, commonShape + "MissingRequiredParameterException", "MissingParameter",
		"The request must contain the parameter " + parameter + ".",
	}
}

func errUnknownAction(action string) *apiError {
	return &apiError{
		http.StatusBadRequest, commonShape + "UnknownOperationException", "InvalidAction",
		fmt.Sprintf("The action %q is not emulated.", action),
	}
}

func errMalformed(err error) *apiError {
	return &apiError{
		http.StatusBadRequest, commonShape + "SerializationException", "MalformedInput", err.Error(),
	}
}
