package queue

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// parseObject splits a JSON object into its fields. It is stricter than
// encoding/json: names are matched by their exact case, and no name can come twice. Two
// readers of such a message could understand two different instances.
// Nesting is limited by encoding/json itself.
func parseObject(data []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	} else if t != json.Delim('{') {
		return nil, fmt.Errorf("not a JSON object")
	}
	fields := make(map[string]json.RawMessage)
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("not JSON: %w", err)
		}
		name, ok := t.(string)
		if !ok {
			return nil, fmt.Errorf("not JSON: name is no string")
		}
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("field %.64q comes twice", name)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("not JSON: %w", err)
		}
		fields[name] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if len(bytes.TrimSpace(data[dec.InputOffset():])) > 0 {
		return nil, fmt.Errorf("not JSON: text after the object")
	}
	return fields, nil
}

// textField returns a field that has to be a string with something in it.
func textField(fields map[string]json.RawMessage, name string) (string, error) {
	raw, ok := fields[name]
	if !ok {
		return "", malformed(rejectField, "no %s", name)
	}
	var text *string
	if err := json.Unmarshal(raw, &text); err != nil || text == nil {
		return "", malformed(rejectField, "%s is not a string", name)
	}
	if *text == "" {
		return "", malformed(rejectField, "%s is empty", name)
	}
	return *text, nil
}

const (
	// AWS makes no announcement further off than these. SQS keeps a message for 14 days,
	// after EventBridge has tried to deliver it for one.
	maxAhead = time.Hour
	maxPast  = 30 * 24 * time.Hour
)

// announcedAt returns the field that says when AWS made the announcement.
func announcedAt(fields map[string]json.RawMessage, name string, received time.Time) (time.Time, error) {
	return timeField(fields, name, received.Add(-maxPast), received.Add(maxAhead), time.RFC3339)
}

// timeField returns a field that has to be a time in one of the layouts, and plausible.
func timeField(fields map[string]json.RawMessage, name string, from, to time.Time, layouts ...string) (time.Time, error) {
	text, err := textField(fields, name)
	if err != nil {
		return time.Time{}, err
	}
	for _, layout := range layouts {
		t, err := time.Parse(layout, text)
		switch {
		case err != nil:
		case t.Before(from) || t.After(to):
			return time.Time{}, malformed(rejectTime, "%s %.64s is implausible, want %s to %s", name, text,
				from.UTC().Format(time.RFC3339), to.UTC().Format(time.RFC3339))
		default:
			return t.UTC(), nil
		}
	}
	return time.Time{}, malformed(rejectTime, "%s %.64q is not a time of the form %s", name, text, layouts[0])
}

func validEventID(id string) bool { return len(id) <= maxEventID && printable(id) }

// printable reports whether the text is ASCII without spaces and control characters.
func printable(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// instanceField returns the instance that a detail names: an EC2 instance id, or
// whatever the last segment of a providerID can be. It is safe as a label's value and in a
// name.
func instanceField(fields map[string]json.RawMessage, name string) (string, error) {
	id, err := textField(fields, name)
	if err != nil {
		return "", err
	}
	if !validInstanceID(id) {
		return "", malformed(rejectInstanceID, "%s %.64q", name, id)
	}
	return id, nil
}

func validInstanceID(id string) bool { return id != "" && len(validation.IsValidLabelValue(id)) == 0 }

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
