package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"text/template"
	"time"

	"github.com/Masterminds/sprig/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
)

// Template makes the body of a webhook from a Message. nil makes the one that Slack understands.
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
		body, err := t.render(m)
		if err != nil {
			return nil, fmt.Errorf("%w (webhooks.md lists the fields)", err)
		}
		if !isJSON(header) {
			continue
		}
		if !json.Valid(body) {
			return nil, errors.New("what the template makes is no JSON, as the header Content-Type says: " +
				"give texts as {{ .Text | toJson }}, without quotes around, or another Content-Type")
		}
		if field := t.unescaped(m); field != "" {
			return nil, fmt.Errorf("line %d of the template puts .%s into JSON as it is, so a quote, a backslash or a line break in that text would break the message: "+
				"write {{ .%[2]s | toJson }}, without quotes around, or for a part of a text {{ printf \"node: %%s\" .%[2]s | toJson }}", lineOf(text, field), field)
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

// render returns the body for a message.
func (t *Template) render(m Message) ([]byte, error) {
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
		body, err := t.render(m)
		*text = kept
		if err == nil && !json.Valid(body) {
			return field
		}
	}
	return ""
}

// lineOf is the line of the template that most likely puts the field there as it is: the first that
// names it and has no toJson, or else the first that names it, or else the first.
func lineOf(text, field string) int {
	name, named := field[strings.LastIndexByte(field, '.')+1:], 0
	for i, line := range strings.Split(text, "\n") {
		switch {
		case !strings.Contains(line, "."+name):
		case !strings.Contains(line, "toJson"):
			return i + 1
		case named == 0:
			named = i + 1
		}
	}
	return max(1, named)
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

// samples are messages of every sort, some with every field and some with few.
func samples() (all []Message) {
	for _, kind := range interruption.Kinds() {
		all = append(all, fullSamples(kind)...)
	}
	few := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	rec := interruption.NewRecord(interruption.Notice{
		Kind:       interruption.RebalanceRecommendation,
		Source:     interruption.IMDS,
		EventID:    "2",
		InstanceID: "i-0",
	})
	return append(all, newMessage(notify.Noticed(few, rec)), newMessage(notify.Canceled(few, rec)))
}

// fullSamples are a notice and an outcome of that kind, with every field.
func fullSamples(kind interruption.Kind) []Message {
	rec := interruption.NewRecord(interruption.Notice{
		Kind:       kind,
		Source:     interruption.Queue,
		EventID:    "1",
		InstanceID: "i-0123456789abcdef0",
		Action:     interruption.ActionTerminate,
		Noticed:    time.Now(),
		Received:   time.Now(),
		Deadline:   time.Now().Add(interruption.SpotNotice),
	})
	rec.Replacement = &interruption.Replacement{
		Backend: "karpenter",
		Name:    "batch-fallback-1",
		Pool:    "batch-fallback",
		State:   "Ready",
	}
	pods := interruption.Pods{
		Total:     4,
		Graceful:  1,
		Truncated: 1,
		Forced:    1,
		Left:      1,
		Refusal:   "the budget needs 10 healthy pods and has 10 currently",
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "ip-10-0-0-1.eu-west-1.compute.internal",
		Labels: map[string]string{
			"karpenter.sh/nodepool":        "batch",
			corev1.LabelInstanceTypeStable: "m7g.large",
			corev1.LabelTopologyZone:       "eu-west-1a",
			corev1.LabelTopologyRegion:     "eu-west-1",
		},
		Annotations: map[string]string{interruption.Annotation: rec.String()},
	}}
	node.Spec.ProviderID = "aws:///eu-west-1a/i-0123456789abcdef0"
	return []Message{
		newMessage(notify.Noticed(node, rec)),
		newMessage(notify.Ended(node, notify.ReasonDeadlineReached, pods, 5*time.Second)),
	}
}
