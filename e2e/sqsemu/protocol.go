package sqsemu

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/util/uuid"
)

const (
	contentType  = "application/x-amz-json-1.0"
	targetHeader = "X-Amz-Target"
	targetPrefix = "AmazonSQS."
)

// action answers one call. The output is encoded as JSON; nil means an empty object.
type action func(s *Server, ctx context.Context, body []byte) (output any, err *apiError)

var actions = map[string]action{
	"GetQueueAttributes":           decoded((*Server).handleGetQueueAttributes),
	"ReceiveMessage":               decoded((*Server).handleReceiveMessage),
	"DeleteMessage":                decoded((*Server).handleDeleteMessage),
	"DeleteMessageBatch":           decoded((*Server).handleDeleteMessageBatch),
	"ChangeMessageVisibilityBatch": decoded((*Server).handleChangeVisibilityBatch),
}

// decoded turns a handler with a typed input into an action.
func decoded[In any](handle func(*Server, context.Context, *In) (any, *apiError)) action {
	return func(s *Server, ctx context.Context, body []byte) (any, *apiError) {
		in := new(In)
		if err := json.Unmarshal(body, in); err != nil {
			return nil, errMalformed(err)
		}
		return handle(s, ctx, in)
	}
}

// ServeHTTP answers as SQS does. It is exported so that a Server is an http.Handler; clients go through URL.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, known := strings.CutPrefix(r.Header.Get(targetHeader), targetPrefix)
	act := actions[name]
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Amzn-Requestid", string(uuid.NewUUID()))
	if r.Method != http.MethodPost || !known || act == nil {
		errUnknownAction(r.Header.Get(targetHeader)).write(w)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		errMalformed(err).write(w)
		return
	}
	s.Serve(w, r, name, nil, func(w http.ResponseWriter, r *http.Request) {
		output, err := act(s, r.Context(), body)
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler) // a long poll cut short has no answer, even if Close cut it
		}
		if err != nil {
			err.write(w)
			return
		}
		if output == nil {
			output = struct{}{}
		}
		_ = json.NewEncoder(w).Encode(output)
	})
}
