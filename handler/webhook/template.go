package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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
// message of each sort. Where the headers say JSON, or nothing, the result has to be JSON.
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
		if isJSON(header) && !json.Valid(body) {
			return nil, errors.New("what the template makes is no JSON, as the header Content-Type says: give texts as {{ .Text | toJson }}, without quotes around, or another Content-Type")
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
