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
	"k8s.io/utils/ptr"

	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
)

// Message is what a webhook says, and what its template is given. A field that does not apply
// is zero, never missing: a template that works for one message works for all.
type Message struct {
	Event       string // notice or outcome
	Reason      string // as of the Kubernetes Event: SpotInterruption, Drained, ...
	Description string // as of the Kubernetes Event
	Text        string // all in one line

	NodeName         string
	NodeLabels       map[string]string
	ProviderID       string
	InstanceID       string
	InstanceType     string
	AvailabilityZone string
	Region           string

	Kind    string // spot-interruption, ...
	Source  string // imds, queue or rehearsal
	EventID string
	Action  string // terminate, stop or hibernate; may be empty

	Noticed     time.Time  // by EC2
	Received    time.Time  // by us
	Deadline    *time.Time // nil where there is none
	StartTime   time.Time  // the deadline, else when it was noticed
	SecondsLeft int        // until the deadline, when the message was made

	// Of an outcome.
	Replacement  interruption.Replacement
	Pods         interruption.Pods
	SlackSeconds int // left until the deadline when the drain had ended
}

// newMessage is the message of that news.
func newMessage(n notify.News) Message {
	node, r := n.Node, n.Record
	m := Message{
		Event: n.Stage, Reason: n.Reason, Description: n.Text,
		Text:     fmt.Sprintf("%s on %s: %s", n.Reason, node.Name, n.Text),
		NodeName: node.Name, NodeLabels: node.Labels, ProviderID: node.Spec.ProviderID, InstanceID: r.Instance,
		InstanceType:     node.Labels[corev1.LabelInstanceTypeStable],
		AvailabilityZone: node.Labels[corev1.LabelTopologyZone],
		Region:           node.Labels[corev1.LabelTopologyRegion],
		Kind:             string(r.Kind), Source: string(r.Source), EventID: r.Event, Action: r.Action,
		Noticed: r.Noticed, Received: r.Received, StartTime: r.Noticed,
		Pods: n.Pods, SlackSeconds: int(n.Slack.Seconds()),
	}
	if d := r.Deadline; !d.IsZero() {
		m.Deadline, m.StartTime = &d, d
		m.SecondsLeft = max(0, int(time.Until(d).Seconds()))
	}
	m.Replacement = ptr.Deref(r.Replacement, interruption.Replacement{})
	return m
}

// slackEscape writes text as Slack wants it, where these three begin markup.
// https://docs.slack.dev/messaging/formatting-message-text#escaping
var slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// defaultPayload is what Slack's incoming webhooks take, and those of others that speak
// the same: {"text": "..."}.
func defaultPayload(m Message) ([]byte, error) {
	return json.Marshal(struct {
		Text string `json:"text"`
	}{slackEscape.Replace(m.Text)})
}

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
		body, err := t.Render(m)
		if err != nil {
			return nil, fmt.Errorf("%w (webhooks.md lists the fields)", err)
		}
		if !isJSON(header) {
			continue
		}
		if !json.Valid(body) {
			return nil, errors.New("what the template makes is no JSON, as the header Content-Type says: give texts as {{ .Text | toJson }}, without quotes around, or another Content-Type")
		}
		if field := t.unescaped(m); field != "" {
			return nil, fmt.Errorf("line %d of the template puts .%s into JSON as it is, so a quote, a backslash or a line break in that text would break the message: write {{ .%[2]s | toJson }}, without quotes around, or for a part of a text {{ printf \"node: %%s\" .%[2]s | toJson }}", lineOf(text, field), field)
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
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ip-10-0-0-1.eu-west-1.compute.internal", Labels: map[string]string{
		"karpenter.sh/nodepool": "batch", corev1.LabelInstanceTypeStable: "m7g.large",
		corev1.LabelTopologyZone: "eu-west-1a", corev1.LabelTopologyRegion: "eu-west-1",
	}}}
	node.Spec.ProviderID = "aws:///eu-west-1a/i-0123456789abcdef0"
	n := interruption.Notice{
		Source: interruption.Queue, EventID: "1", InstanceID: "i-0123456789abcdef0", Action: interruption.ActionTerminate,
		Noticed: time.Now(), Received: time.Now(), Deadline: time.Now().Add(interruption.SpotNotice),
	}
	for _, n.Kind = range interruption.Kinds() {
		rec := interruption.NewRecord(n)
		rec.Replacement = &interruption.Replacement{Backend: "karpenter", Name: "batch-fallback-1", Pool: "batch-fallback", State: "Ready"}
		pods := interruption.Pods{Total: 4, Graceful: 1, Truncated: 1, Forced: 1, Left: 1, Refusal: "the budget needs 10 healthy pods and has 10 currently"}
		node.Annotations = map[string]string{interruption.Annotation: rec.String()}
		all = append(all, newMessage(notify.Noticed(node, rec)), newMessage(notify.Ended(node, notify.ReasonDeadlineReached, pods, 5*time.Second)))
	}
	few := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	rec := interruption.NewRecord(interruption.Notice{Kind: interruption.RebalanceRecommendation, Source: interruption.IMDS, EventID: "2", InstanceID: "i-0"})
	return append(all, newMessage(notify.Noticed(few, rec)), newMessage(notify.Canceled(few, rec)))
}
