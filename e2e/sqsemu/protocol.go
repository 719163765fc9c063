package sqsemu

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"
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
	w.Header().Set("X-Amzn-Requestid", newUUID())
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

// newUUID returns a random UUID, the form of message and request IDs.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
