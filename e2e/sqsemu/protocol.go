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
	targetPrefix = "AmazonSQS."
)

// action answers one call. The output is encoded as JSON; nil means an empty object.
type action func(s *Server, ctx context.Context, body []byte) (output any, err *apiError)

var actions = map[string]action{
	"CreateQueue":                  decoded((*Server).handleCreateQueue),
	"DeleteQueue":                  decoded((*Server).handleDeleteQueue),
	"GetQueueUrl":                  decoded((*Server).handleGetQueueURL),
	"GetQueueAttributes":           decoded((*Server).handleGetQueueAttributes),
	"SetQueueAttributes":           decoded((*Server).handleSetQueueAttributes),
	"PurgeQueue":                   decoded((*Server).handlePurgeQueue),
	"SendMessage":                  decoded((*Server).handleSendMessage),
	"SendMessageBatch":             decoded((*Server).handleSendMessageBatch),
	"ReceiveMessage":               decoded((*Server).handleReceiveMessage),
	"DeleteMessage":                decoded((*Server).handleDeleteMessage),
	"DeleteMessageBatch":           decoded((*Server).handleDeleteMessageBatch),
	"ChangeMessageVisibility":      decoded((*Server).handleChangeVisibility),
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
	name, known := strings.CutPrefix(r.Header.Get("X-Amz-Target"), targetPrefix)
	act := actions[name]
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Amzn-Requestid", newUUID())
	if r.Method != http.MethodPost || !known || act == nil {
		errUnknownAction(r.Header.Get("X-Amz-Target")).write(w)
		return
	}
	// The largest request is a batch of 1 MiB, whose JSON may escape every byte.
	body, readErr := io.ReadAll(http.MaxBytesReader(w, r.Body, 8<<20))
	if readErr != nil {
		errMalformed(readErr).write(w)
		return
	}

	fault := s.count(name)
	if fault != nil && !fault.LoseReply && !fault.play(w, r, name) {
		return
	}
	output, err := act(s, r.Context(), body)
	if fault != nil && fault.LoseReply && !fault.play(w, r, name) {
		return
	}
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
