package sqsemu

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"time"
)

// Names of the attributes that the emulator acts upon.
const (
	visibilityTimeout = "VisibilityTimeout"
	retentionPeriod   = "MessageRetentionPeriod"
	delaySeconds      = "DelaySeconds"
	receiveWait       = "ReceiveMessageWaitTimeSeconds"
	maximumSize       = "MaximumMessageSize"
	redrivePolicy     = "RedrivePolicy"
	policyDocument    = "Policy"
)

const (
	// maxMessageBytes is the limit of one message and of all messages of a batch together. It was 256 KiB until 2025.
	maxMessageBytes = 1 << 20
	// maxVisibility is the longest time, in seconds, for which one receive can hide a message.
	maxVisibility = 12 * 60 * 60
	maxDelay      = 15 * 60
	maxWait       = 20
	maxRetention  = 14 * 24 * 60 * 60
)

// numbers are the attributes with a number for a value.
var numbers = map[string]struct{ min, max, initial int }{
	visibilityTimeout: {0, maxVisibility, 30},
	retentionPeriod:   {60, maxRetention, 4 * 24 * 60 * 60},
	delaySeconds:      {0, maxDelay, 0},
	receiveWait:       {0, maxWait, 0},
	maximumSize:       {1024, maxMessageBytes, maxMessageBytes},
}

// attributes are what can be set on a queue.
type attributes struct {
	number  map[string]int
	redrive *redrive
	text    map[string]string // RedrivePolicy and Policy as they were given
}

// redrive says when to give up a message.
type redrive struct {
	deadLetters string // name of the queue
	maxReceives int
}

func defaultAttributes() *attributes {
	a := &attributes{number: map[string]int{}, text: map[string]string{}}
	for name, n := range numbers {
		a.number[name] = n.initial
	}
	return a
}

func (a *attributes) seconds(name string) time.Duration {
	return time.Duration(a.number[name]) * time.Second
}

// with returns the attributes with the given changes. The access policy is kept but not enforced.
func (a *attributes) with(s *Server, given map[string]string) (*attributes, *apiError) {
	changed := &attributes{number: maps.Clone(a.number), redrive: a.redrive, text: maps.Clone(a.text)}
	for name, value := range given {
		limits, isNumber := numbers[name]
		switch {
		case isNumber:
			n, err := strconv.Atoi(value)
			if err != nil || n < limits.min || n > limits.max {
				return nil, errAttributeValue(name, value)
			}
			changed.number[name] = n
		case name == redrivePolicy:
			policy, err := s.parseRedrive(value)
			if err != nil {
				return nil, err
			}
			changed.redrive = policy
			changed.text[name] = value
		case name == policyDocument:
			changed.text[name] = value
		default:
			return nil, errAttributeName(name)
		}
		if value == "" { // that removes a policy
			delete(changed.text, name)
		}
	}
	return changed, nil
}

// get returns one attribute as the API shows it.
func (a *attributes) get(name string) (value string, set bool) {
	if n, ok := a.number[name]; ok {
		return strconv.Itoa(n), true
	}
	value, set = a.text[name]
	return value, set
}

func (s *Server) parseRedrive(value string) (*redrive, *apiError) {
	if value == "" {
		return nil, nil
	}
	invalid := func(reason string) *apiError {
		return errParameter("Value %s for parameter RedrivePolicy is invalid. Reason: %s", value, reason)
	}
	// Templates write the count as a number, the console as a string; SQS takes both.
	var policy struct {
		Target string      `json:"deadLetterTargetArn"`
		Max    json.Number `json:"maxReceiveCount"`
	}
	if err := json.Unmarshal([]byte(value), &policy); err != nil {
		return nil, invalid("Redrive policy is not a valid JSON map.")
	}
	n, err := strconv.Atoi(policy.Max.String())
	if err != nil || n < 1 || n > 1000 {
		return nil, invalid("Invalid value for maxReceiveCount: must be between 1 and 1000.")
	}
	name := policy.Target[strings.LastIndex(policy.Target, ":")+1:]
	if q := s.queues[name]; q == nil || q.ARN() != policy.Target {
		return nil, invalid("Dead letter target does not exist.")
	}
	return &redrive{deadLetters: name, maxReceives: n}, nil
}

// describe returns all attributes of the queue.
func (q *Queue) describe() map[string]string {
	q.sweep(time.Now())
	count := map[State]int{}
	for _, m := range q.messages {
		count[m.State]++
	}
	all := map[string]string{
		"QueueArn":                              q.ARN(),
		"CreatedTimestamp":                      strconv.FormatInt(q.created.Unix(), 10),
		"LastModifiedTimestamp":                 strconv.FormatInt(q.modified.Unix(), 10),
		"ApproximateNumberOfMessages":           strconv.Itoa(count[Visible]),
		"ApproximateNumberOfMessagesNotVisible": strconv.Itoa(count[InFlight]),
		"ApproximateNumberOfMessagesDelayed":    strconv.Itoa(count[Delayed]),
		"SqsManagedSseEnabled":                  "true",
	}
	for name := range numbers {
		all[name], _ = q.attributes.get(name)
	}
	maps.Copy(all, q.attributes.text)
	return all
}

// describable are the attributes that a client may ask for even if a queue does not have them.
var describable = map[string]bool{
	redrivePolicy: true, policyDocument: true, "RedriveAllowPolicy": true, "KmsMasterKeyId": true,
	"KmsDataKeyReusePeriodSeconds": true, "FifoQueue": true, "ContentBasedDeduplication": true,
	"DeduplicationScope": true, "FifoThroughputLimit": true,
}
