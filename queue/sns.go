package queue

import "encoding/json"

// isSNS reports whether an SNS topic has wrapped the message: it then has a type, and
// what was published is one of its fields, as text. A topic with raw message delivery
// leaves the message as it is.
// https://docs.aws.amazon.com/sns/latest/dg/sns-message-and-json-formats.html
func isSNS(fields map[string]json.RawMessage) bool {
	_, typed := fields["Type"]
	_, message := fields["Message"]
	_, topic := fields["TopicArn"]
	return typed && message && topic
}

// unwrapSNS returns the fields of the message that was published. It unwraps once: no topic
// subscribes to another, so nobody wraps a message twice.
func unwrapSNS(fields map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	kind, err := textField(fields, "Type")
	if err != nil {
		return nil, err
	}
	if kind != "Notification" { // such as a subscription that waits to be confirmed
		return nil, unsupported(rejectDetailType, "SNS message of type %.64q", kind)
	}
	text, err := textField(fields, "Message")
	if err != nil {
		return nil, err
	}
	inner, err := parseBody(text)
	if err != nil {
		return nil, err
	}
	if isSNS(inner) {
		return nil, malformed(rejectJSON, "wrapped by SNS twice")
	}
	return inner, nil
}
