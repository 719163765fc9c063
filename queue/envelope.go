package queue

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"spot-handler/handler/interruption"
)

const (
	// maxBody is the most that SQS itself lets a message be.
	maxBody = 1 << 20

	// maxEventID is ample for the UUIDs that EventBridge makes, and small enough for
	// the record on the Node.
	maxEventID = 128

	// An envelope's time further off than these is not EventBridge's. SQS keeps a
	// message for 14 days, after EventBridge has tried for one.
	maxAhead = time.Hour
	maxPast  = 30 * 24 * time.Hour
)

// An envelope is what EventBridge wraps around a message of any kind. "resources"
// is not read: it is an array of ARNs in most kinds and a string in one, and says
// nothing that the detail does not say better.
type envelope struct {
	id     string
	kind   string // "detail-type"
	source string
	time   time.Time
	detail json.RawMessage
}

// A format is one detail-type that is understood. Rules of an event bus can route
// anybody's messages: a detail-type counts only from the service that owns it.
type format struct {
	source string
	parse  func(e envelope, received time.Time) ([]interruption.Notice, error)
}

var formats = map[string]format{
	"EC2 Spot Instance Interruption Warning": {"aws.ec2", parseSpotInterruption},
	"EC2 Instance Rebalance Recommendation":  {"aws.ec2", parseRebalance},
}

// parse returns the notices of a message, at least one, or a *rejection.
func parse(body string, received time.Time) ([]interruption.Notice, error) {
	if len(body) > maxBody {
		return nil, malformed(rejectTooLarge, "%d bytes, want at most %d", len(body), maxBody)
	}
	if !utf8.ValidString(body) {
		return nil, malformed(rejectJSON, "not UTF-8")
	}
	fields, err := parseObject([]byte(body))
	if err != nil {
		return nil, malformed(rejectJSON, "%v", err)
	}

	// Which kind it is comes first: what is wrong with the rest of a message that
	// would not be used anyway is nobody's concern.
	var e envelope
	if e.kind, err = textField(fields, "detail-type"); err != nil {
		return nil, err
	}
	if e.source, err = textField(fields, "source"); err != nil {
		return nil, err
	}
	f, known := formats[e.kind]
	switch {
	case !known:
		return nil, unsupported(rejectDetailType, "detail-type %.128q", e.kind)
	case e.source != f.source:
		return nil, unsupported(rejectSource, "detail-type %q from source %.128q, want %q", e.kind, e.source, f.source)
	}

	if e.id, err = textField(fields, "id"); err != nil {
		return nil, err
	}
	if !validEventID(e.id) {
		return nil, malformed(rejectField, "id %.128q", e.id)
	}
	if e.time, err = envelopeTime(fields, received); err != nil {
		return nil, err
	}
	e.detail = fields["detail"]
	return f.parse(e, received)
}

func envelopeTime(fields map[string]json.RawMessage, received time.Time) (time.Time, error) {
	text, err := textField(fields, "time")
	if err != nil {
		return time.Time{}, err
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, malformed(rejectTime, "time %.64q is not RFC 3339", text)
	}
	if t.Before(received.Add(-maxPast)) || t.After(received.Add(maxAhead)) {
		return time.Time{}, malformed(rejectTime, "time %s is implausible at %s", text, received.UTC().Format(time.RFC3339))
	}
	return t.UTC(), nil
}

// parseObject splits a JSON object into its fields. It is stricter than
// encoding/json: names are matched by their exact case, and no name may come twice,
// as two readers of such a message can understand two different instances.
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

// detailFields returns the fields of the detail, which has to be an object.
func (e envelope) detailFields() (map[string]json.RawMessage, error) {
	if e.detail == nil {
		return nil, malformed(rejectField, "no detail")
	}
	fields, err := parseObject(e.detail)
	if err != nil {
		return nil, malformed(rejectField, "detail: %v", err)
	}
	return fields, nil
}

// notice is what every kind takes from the envelope.
func (e envelope) notice(kind interruption.Kind, instance string, received time.Time) interruption.Notice {
	return interruption.Notice{
		Kind:       kind,
		Source:     interruption.Queue,
		EventID:    e.id,
		InstanceID: instance,
		Noticed:    earlier(e.time, received), // clocks differ by a second or so
		Received:   received,
	}
}

func validEventID(id string) bool {
	if len(id) > maxEventID {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// maxInstanceID is the longest value that a label of a Node can have.
const maxInstanceID = 63

// instanceField returns the instance that a detail names: an EC2 instance id, or
// whatever the last segment of a providerID can be. It is then safe as a label's
// value and in a name.
func instanceField(fields map[string]json.RawMessage, name string) (string, error) {
	id, err := textField(fields, name)
	if err != nil {
		return "", err
	}
	if len(id) > maxInstanceID {
		return "", malformed(rejectInstanceID, "%s %.64q is too long", name, id)
	}
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case (c == '.' || c == '_' || c == '-') && i > 0 && i < len(id)-1:
		default:
			return "", malformed(rejectInstanceID, "%s %q", name, id)
		}
	}
	return id, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
