package queue

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"
	strictjson "sigs.k8s.io/json"

	"spot-handler/handler/interruption"
)

const (
	// AWS makes no announcement further off than these. SQS keeps a message for 14 days,
	// after EventBridge has tried to deliver it for one.
	maxAhead = time.Hour
	maxPast  = 30 * 24 * time.Hour

	// maxEventID is ample for the UUIDs that EventBridge makes, and small enough for
	// the record on the Node.
	maxEventID = 128

	// maxName is the longest name that Auto Scaling lets a group or a hook have.
	maxName = 255
)

// An object is a JSON object whose fields are read one after another. err is a *rejection: why
// the first field that cannot be used cannot. What is read from then on does not count.
type object struct {
	fields map[string]json.RawMessage
	err    error
}

// fail rejects the object, unless it is rejected already.
func (o *object) fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

func (o *object) has(name string) bool {
	_, has := o.fields[name]
	return has
}

// text returns a field that has to be a string with something in it.
func (o *object) text(name string) string {
	raw, ok := o.fields[name]
	if !ok {
		o.fail(malformed(rejectField, "no %s", name))
		return ""
	}
	var text *string
	if err := json.Unmarshal(raw, &text); err != nil || text == nil {
		o.fail(malformed(rejectField, "%s is not a string", name))
		return ""
	}
	if *text == "" {
		o.fail(malformed(rejectField, "%s is empty", name))
	}
	return *text
}

// object returns a field that has to be an object.
func (o *object) object(name string) object {
	raw, ok := o.fields[name]
	if !ok {
		return object{err: malformed(rejectField, "no %s", name)}
	}
	return objectOf(raw, name)
}

// objectOf is that JSON, which has to be an object.
func objectOf(raw json.RawMessage, name string) (o object) {
	fields, err := parseObject(raw)
	if err != nil {
		o.fail(malformed(rejectField, "%s: %v", name, err))
	}
	o.fields = fields
	return o
}

// announced returns the field that says when AWS made the announcement.
func (o *object) announced(name string, received time.Time) time.Time {
	return o.time(name, received.Add(-maxPast), received.Add(maxAhead), time.RFC3339)
}

// time returns a field that has to be a time in one of the layouts, and plausible.
func (o *object) time(name string, from, to time.Time, layouts ...string) time.Time {
	text := o.text(name)
	for _, layout := range layouts {
		t, err := time.Parse(layout, text)
		switch {
		case err != nil:
		case t.Before(from) || t.After(to):
			o.fail(malformed(rejectTime, "%s %.64s is implausible, want %s to %s", name, text,
				from.UTC().Format(time.RFC3339), to.UTC().Format(time.RFC3339)))
			return time.Time{}
		default:
			return t.UTC()
		}
	}
	o.fail(malformed(rejectTime, "%s %.64q is not a time of the form %s", name, text, layouts[0]))
	return time.Time{}
}

// id returns a field that names an event or an action of a hook.
func (o *object) id(name string) string {
	id := o.text(name)
	if !validEventID(id) {
		o.fail(malformed(rejectField, "%s %.128q", name, id))
	}
	return id
}

// name returns the name of a group or of a hook. It is kept on the Node and given back to Auto
// Scaling: nothing in it must be invisible.
func (o *object) name(field string) string {
	name := o.text(field)
	if len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		o.fail(malformed(rejectField, "%s %.128q", field, name))
	}
	return name
}

// instance returns the instance that a detail names: an EC2 instance id, or whatever the last
// segment of a providerID can be. It is safe as a label's value and in a name.
func (o *object) instance(name string) string {
	id := o.text(name)
	if !validInstanceID(id) {
		o.fail(malformed(rejectInstanceID, "%s %.64q", name, id))
	}
	return id
}

// action returns what EC2 is about to do to the instance.
//
// An action that EC2 does not document counts as a termination: the message says that the
// instance is interrupted, whatever the word for it. Moving pods for nothing costs less than
// losing them.
func (o *object) action() string {
	switch action := o.text("instance-action"); action {
	case interruption.ActionTerminate, interruption.ActionStop, interruption.ActionHibernate:
		return action
	}
	return interruption.ActionTerminate
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

func validInstanceID(id string) bool { return id != "" && len(validation.IsValidLabelValue(id)) == 0 }

// parseObject splits a JSON object into its fields. It is stricter than
// encoding/json: names are matched by their exact case, and no name can come twice. Two
// readers of such a message could understand two different instances.
// The decoder itself limits nesting.
func parseObject(data []byte) (fields map[string]json.RawMessage, err error) {
	ambiguous, err := strictjson.UnmarshalStrict(data, &fields)
	switch {
	case err != nil:
		return nil, fmt.Errorf("not a JSON object: %w", err)
	case fields == nil:
		return nil, errors.New("not a JSON object")
	case len(ambiguous) > 0:
		return nil, fmt.Errorf("%.128s", ambiguous[0].Error())
	}
	return fields, nil
}
