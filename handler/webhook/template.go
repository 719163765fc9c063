package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/Masterminds/sprig/v3"

	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
)

// Template makes the body of a webhook. nil makes the one that Slack understands. It is
// given a Message, which holds plain values: no method of theirs reaches out of it.
type Template struct{ parsed *template.Template }

// ParseTemplate reads a Go template, which may use sprig's functions, and tries it on a
// message of each sort. Where the headers say JSON, or nothing, the result has to be JSON, whatever
// characters the texts have.
func ParseTemplate(text string, header http.Header) (*Template, error) {
	// A label that a node does not have is empty, not "<no value>".
	parsed, err := template.New("webhook").Option("missingkey=zero").Funcs(functions()).Parse(text)
	if err != nil {
		return nil, fmt.Errorf("parse template: %w", err)
	}
	t := &Template{parsed}
	for _, m := range samples() {
		body, err := t.Render(m)
		if err != nil {
			return nil, fmt.Errorf("%w (the README lists the fields)", err)
		}
		if !isJSON(header) {
			continue
		}
		if !json.Valid(body) {
			return nil, errors.New("what the template makes is no JSON, as the header Content-Type says: give texts as {{ .Text | toJson }}, without quotes around, or another Content-Type")
		}
		if field := t.unescaped(m); field != "" {
			return nil, fmt.Errorf("line %d of the template puts .%s into JSON as it is, so a quote, a backslash or a line break in that text would break the message: write {{ .%[2]s | toJson }}, without quotes around, or for a part of a text {{ printf \"node: %%s\" .%[2]s | toJson }}", line(text, field), field)
		}
	}
	return t, nil
}

// functions are sprig's, but for the one that asks a name server, which can hang. Those
// that read the environment stay: the operator writes both, and names the cluster there.
func functions() template.FuncMap {
	all := sprig.TxtFuncMap()
	delete(all, "getHostByName")
	return all
}

// Render returns the body for a message.
func (t *Template) Render(m Message) ([]byte, error) {
	if t == nil {
		return defaultPayload(m)
	}
	var b bytes.Buffer
	if err := t.parsed.Execute(&b, m); err != nil {
		return nil, &refusedError{fmt.Sprintf("execute template: %v", err)}
	}
	return b.Bytes(), nil
}

// awkward has all that JSON has to escape, and what most people escape it by.
const awkward = "a \"quoted\" 'text' with a \\, a <tag> & a line\nbreak"

// unescaped is the field that makes no JSON any more if its text is awkward; empty if there is none.
func (t *Template) unescaped(m Message) string {
	for field, text := range freeTexts(&m) {
		kept := *text
		*text = awkward
		body, err := t.Render(m)
		*text = kept
		if err == nil && !json.Valid(body) {
			return field
		}
	}
	return ""
}

// freeTexts yields those fields that can hold any character, with their names: kubelets write their
// Node's provider id and, if they forge one, the record, and the API server what refuses an eviction.
// Names and labels of Nodes cannot.
func freeTexts(m *Message) iter.Seq2[string, *string] {
	return func(yield func(string, *string) bool) {
		_ = yield("Text", &m.Text) && yield("Description", &m.Description) && yield("ProviderID", &m.ProviderID) &&
			yield("InstanceID", &m.InstanceID) && yield("Source", &m.Source) && yield("EventID", &m.EventID) &&
			yield("Action", &m.Action) && yield("Pods.Refusal", &m.Pods.Refusal) &&
			yield("Replacement.Backend", &m.Replacement.Backend) && yield("Replacement.Name", &m.Replacement.Name) &&
			yield("Replacement.Pool", &m.Replacement.Pool) && yield("Replacement.Capacity", &m.Replacement.Capacity) &&
			yield("Replacement.State", &m.Replacement.State) && yield("Replacement.Reason", &m.Replacement.Reason) &&
			yield("Replacement.Tried", &m.Replacement.Tried)
	}
}

// line is the first line of the template that has the field and does not escape it, else the first
// that has it, else the first.
func line(template, field string) int {
	has := regexp.MustCompile(`\.` + field[strings.LastIndexByte(field, '.')+1:] + `\b`)
	lines := strings.Split(template, "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return has.MatchString(l) && !strings.Contains(l, "toJson") })
	if i < 0 {
		i = max(0, slices.IndexFunc(lines, has.MatchString))
	}
	return i + 1
}

// samples are messages of every sort, some with every field and some with few.
func samples() []Message {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	deadline := at.Add(2 * time.Minute)
	spot := Message{
		Event: EventNotice, Reason: notify.NoticeReason(interruption.SpotInterruption), Description: "deadline 2026-01-01T12:02:00Z, in 118 s", Text: "a notice",
		NodeName: "ip-10-0-0-1.eu-west-1.compute.internal", NodeLabels: map[string]string{"karpenter.sh/nodepool": "batch"},
		ProviderID: "aws:///eu-west-1a/i-0123456789abcdef0", InstanceID: "i-0123456789abcdef0", InstanceType: "m7g.large",
		AvailabilityZone: "eu-west-1a", Region: "eu-west-1",
		Kind: string(interruption.SpotInterruption), Source: string(interruption.Queue), EventID: "1", Action: "terminate",
		Noticed: at, Received: at.Add(time.Second), Deadline: &deadline, StartTime: deadline, SecondsLeft: 119,
	}
	rebalance := Message{
		Event: EventNotice, Reason: notify.NoticeReason(interruption.RebalanceRecommendation), Description: "no deadline", Text: "a notice",
		NodeName: "node", InstanceID: "i-0", Kind: string(interruption.RebalanceRecommendation), Source: string(interruption.IMDS), EventID: "2",
		Noticed: at, Received: at, StartTime: at,
	}
	ended := spot
	ended.Event, ended.Reason, ended.Text, ended.SecondsLeft = EventOutcome, notify.ReasonDeadlineReached, "an outcome", 5
	ended.Replacement = interruption.Replacement{Backend: "karpenter", Name: "batch-fallback-1", Pool: "batch-fallback", State: "Ready"}
	ended.Pods = interruption.Pods{Total: 4, Graceful: 1, Truncated: 1, Forced: 1, Left: 1, Refusal: "the budget needs 10 healthy pods and has 10 currently"}
	ended.SlackSeconds = 5
	canceled := rebalance
	canceled.Event, canceled.Reason, canceled.Text = EventOutcome, notify.ReasonCanceled, "an outcome"
	all := []Message{spot, rebalance, ended, canceled}
	for _, kind := range interruption.Kinds() {
		m := spot
		m.Kind, m.Reason = string(kind), notify.NoticeReason(kind)
		all = append(all, m)
	}
	return all
}
