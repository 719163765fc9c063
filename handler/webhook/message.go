package webhook

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
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
		Event:            n.Stage,
		Reason:           n.Reason,
		Description:      n.Text,
		Text:             fmt.Sprintf("%s on %s: %s", n.Reason, node.Name, n.Text),
		NodeName:         node.Name,
		NodeLabels:       node.Labels,
		ProviderID:       node.Spec.ProviderID,
		InstanceID:       r.Instance,
		InstanceType:     node.Labels[corev1.LabelInstanceTypeStable],
		AvailabilityZone: node.Labels[corev1.LabelTopologyZone],
		Region:           node.Labels[corev1.LabelTopologyRegion],
		Kind:             string(r.Kind),
		Source:           string(r.Source),
		EventID:          r.Event,
		Action:           r.Action,
		Noticed:          r.Noticed,
		Received:         r.Received,
		StartTime:        r.Noticed,
		Replacement:      ptr.Deref(r.Replacement, interruption.Replacement{}),
		Pods:             n.Pods,
		SlackSeconds:     int(n.Slack.Seconds()),
	}
	if d := r.Deadline; !d.IsZero() {
		m.Deadline, m.StartTime = &d, d
		m.SecondsLeft = max(0, int(time.Until(d).Seconds()))
	}
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
