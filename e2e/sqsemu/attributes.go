package sqsemu

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

type getAttributesInput struct {
	QueueUrl       string
	AttributeNames []string
}

// handleGetQueueAttributes leaves out what a queue does not have, such as a redrive policy, and what is not emulated.
func (s *Server) handleGetQueueAttributes(_ context.Context, in *getAttributesInput) (any, *apiError) {
	return s.withQueue(in.QueueUrl, func(q *Queue) (any, *apiError) {
		all := q.describe()
		wanted := map[string]string{}
		for _, name := range in.AttributeNames {
			if name == "All" {
				wanted = all
			} else if value, ok := all[name]; ok {
				wanted[name] = value
			}
		}
		return struct {
			Attributes map[string]string `json:",omitempty"`
		}{wanted}, nil
	})
}

// describe returns all attributes of the queue.
func (q *Queue) describe() map[string]string {
	now := time.Now()
	count := map[State]int{}
	for _, m := range q.live {
		count[m.state(now)]++
	}
	all := map[string]string{
		"QueueArn":                              q.ARN(),
		"VisibilityTimeout":                     strconv.Itoa(int(q.options.Visibility.Seconds())),
		"ApproximateNumberOfMessages":           strconv.Itoa(count[Visible]),
		"ApproximateNumberOfMessagesNotVisible": strconv.Itoa(count[InFlight]),
	}
	if q.options.DeadLetters != nil {
		all["RedrivePolicy"] = fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, q.options.DeadLetters.ARN(), q.options.MaxReceives)
	}
	return all
}
