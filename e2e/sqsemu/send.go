package sqsemu

import (
	"context"
	"time"
	"unicode/utf8"
)

type sendInput struct {
	Id                      string // in a batch
	QueueUrl                string // otherwise
	MessageBody             string
	DelaySeconds            *int
	MessageAttributes       map[string]messageAttribute
	MessageSystemAttributes map[string]messageAttribute
}

type sendOutput struct {
	Id                     string `json:",omitempty"`
	MessageId              string
	MD5OfMessageBody       string
	MD5OfMessageAttributes string `json:",omitempty"`
}

func (s *Server) handleSendMessage(_ context.Context, in *sendInput) (any, *apiError) {
	return s.withQueue(in.QueueUrl, func(q *Queue) (any, *apiError) { return q.send(in) })
}

type sendBatchInput struct {
	QueueUrl string
	Entries  []sendInput
}

func (s *Server) handleSendMessageBatch(_ context.Context, in *sendBatchInput) (any, *apiError) {
	return s.withQueue(in.QueueUrl, func(q *Queue) (any, *apiError) {
		id := func(e *sendInput) string { return e.Id }
		if err := checkBatch(in.Entries, id); err != nil {
			return nil, err
		}
		size := 0
		for i := range in.Entries {
			size += in.Entries[i].size()
		}
		if size > maxMessageBytes {
			return nil, modeled("BatchRequestTooLong", "Batch requests cannot be longer than %d bytes. You have sent %d bytes.", maxMessageBytes, size)
		}
		return batch(in.Entries, id, q.send)
	})
}

func (q *Queue) send(in *sendInput) (*sendOutput, *apiError) {
	delay := q.attributes.number[delaySeconds]
	if in.DelaySeconds != nil {
		delay = *in.DelaySeconds
	}
	limit := q.attributes.number[maximumSize]
	switch {
	case in.MessageBody == "":
		return nil, errMissing("MessageBody")
	case in.size() > limit:
		return nil, errParameter("One or more parameters are invalid. Reason: Message must be shorter than %d bytes.", limit)
	case !sendable(in.MessageBody):
		return nil, errMessageContents()
	case delay < 0 || delay > maxDelay:
		return nil, errParameter("Value %d for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= %d.", delay, maxDelay)
	}
	m := q.add(&message{
		Message:    Message{Body: in.MessageBody, Sent: time.Now()},
		attributes: in.MessageAttributes,
		trace:      in.MessageSystemAttributes["AWSTraceHeader"].StringValue,
	}, time.Duration(delay)*time.Second)
	return &sendOutput{
		Id: in.Id, MessageId: m.ID, MD5OfMessageBody: m.md5, MD5OfMessageAttributes: md5OfAttributes(m.attributes),
	}, nil
}

// size is what counts towards the limits: the body and the attributes.
func (in *sendInput) size() int {
	n := len(in.MessageBody)
	for name, a := range in.MessageAttributes {
		n += len(name) + len(a.DataType) + len(a.StringValue) + len(a.BinaryValue)
	}
	return n
}

// sendable reports whether SQS takes the text: the characters of XML 1.0.
func sendable(body string) bool {
	for _, r := range body {
		switch {
		case r == '\t', r == '\n', r == '\r', r >= 0x20 && r <= 0xd7ff, r >= 0xe000 && r <= 0xfffd, r >= 0x10000 && r <= utf8.MaxRune:
		default:
			return false
		}
	}
	return true
}
