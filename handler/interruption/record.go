// Package interruption holds the words that every other package of spot-handler shares: the
// Notice that a source delivers, the Kind of interruption it announces, and the Record kept on
// the Node.
//
// Everything here is plain data. There are no clients and no configuration. Nothing blocks. All
// functions are safe for concurrent use and return new values instead of changing their arguments;
// none reads a clock, except to log how much time is left.
package interruption

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// The names that spot-handler writes on a Node.
const (
	// Annotation holds the Record as JSON.
	Annotation = "spot-handler/interruption"

	// TaintKey is the key of the NoSchedule taint; its value is the kind. Pods that
	// tolerate it are left on the node.
	TaintKey = "spot-handler/interrupted"

	// CancelAnnotation with the value "true" on an interrupted Node cancels its interruption:
	// what spot-handler has set is undone, and the record and the annotation are removed.
	CancelAnnotation = "spot-handler/cancel"

	// PastAnnotation holds, as JSON, announcements that must not be handled a second time: what
	// CancelAnnotation has cancelled, and scheduled events that were canceled or completed or
	// from which the instance has come back.
	PastAnnotation = "spot-handler/past-events"

	// ConditionType is the condition of a Node that is interrupted, for controllers that know nothing of
	// the record.
	ConditionType = "spot-handler/Interrupted"

	// IgnoreLabel with the value "true" on a Node opts it out: no notice about it is recorded.
	IgnoreLabel = "spot-handler/ignore"

	// InstanceIDLabel names the instance of a Node whose spec.providerID does not end
	// in it.
	InstanceIDLabel = "spot-handler/instance-id"

	// ReservationLabel names the capacity reservation that a Node's instance runs in, for Nodes that
	// Karpenter has not made.
	ReservationLabel = "spot-handler/capacity-reservation-id"

	// ExcludeFromLoadBalancers takes a Node out of the load balancers that a cloud controller
	// manages. The value says that we set it.
	// https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-exclude-from-external-load-balancers
	ExcludeFromLoadBalancers      = "node.kubernetes.io/exclude-from-external-load-balancers"
	ExcludeFromLoadBalancersValue = "spot-handler"
)

// Phase is how far an interruption has been handled.
//
//	Waiting ─► Noticed ─► Replacing ─► Draining ─► Drained ─────────► Released
//	                                      └──────► DeadlineReached ──►
type Phase string

const (
	Waiting         Phase = "Waiting"         // recorded only: its time or its turn has not come
	Noticed         Phase = "Noticed"         // recorded and cordoned
	Replacing       Phase = "Replacing"       // replacement requested, no pod moved yet
	Draining        Phase = "Draining"        // pods are being evicted
	Drained         Phase = "Drained"         // every pod that had to leave has left
	DeadlineReached Phase = "DeadlineReached" // EC2's time came before the pods had left
	Released        Phase = "Released"        // what made the node was asked to terminate it
)

// Phases lists every phase in its order.
func Phases() []Phase {
	return []Phase{Waiting, Noticed, Replacing, Draining, Drained, DeadlineReached, Released}
}

// Over reports whether no more pods are moved in phase p.
func (p Phase) Over() bool { return p == Drained || p == DeadlineReached || p == Released }

// Record is the durable state of one interruption, kept on the Node. It is the only state that
// has to survive: any process that can read the Node can carry on from it.
type Record struct {
	Kind     Kind   `json:"kind"`
	Event    string `json:"event"`
	Instance string `json:"instance"`
	Source   Source `json:"source"`
	Action   string `json:"action,omitempty"`

	Noticed  time.Time `json:"noticed"`
	Received time.Time `json:"received"`
	Deadline time.Time `json:"deadline,omitzero"` // zero: there is none

	Phase       Phase        `json:"phase"`
	Replacement *Replacement `json:"replacement,omitempty"`
	Pods        *Pods        `json:"pods,omitempty"`
	Ended       time.Time    `json:"ended,omitzero"` // when Drained or DeadlineReached

	// Announced are all announcements that stand, if there are several. The fields above are
	// then those of the strongest kind, except Deadline, which is the earliest of all.
	Announced []Announcement `json:"announced,omitempty"`

	// Past holds announcements that no longer stand, see [Past].
	Past []Announcement `json:"past,omitempty"`

	// Hooks are the lifecycle hooks that wait for this instance.
	Hooks []Hook `json:"hooks,omitempty"`

	// Boot is the Node's boot id when it was cordoned for something that its instance comes
	// back from, see [Record.Returned].
	Boot string `json:"boot,omitempty"`

	// Begun is when we acted on a record that had to wait for its time or its turn.
	Begun time.Time `json:"begun,omitzero"`

	// Release has the node of a rehearsal terminated at its end, as after an interruption. It
	// means nothing otherwise.
	Release bool `json:"release,omitempty"`

	// Canceled: no announcement stands any longer, so what we set has to be undone.
	Canceled bool `json:"canceled,omitempty"`

	// Ours lists what we set on the Node ourselves and may therefore undo. A record that waits
	// but has any goes back to waiting: they are undone first.
	Ours []string `json:"ours,omitempty"`

	unknown map[string]json.RawMessage // fields that only a newer version knows
}

// What Record.Ours can hold.
const (
	OursCordon       = "cordon"
	OursTaint        = "taint"
	OursLoadBalancer = "load-balancer"
	OursOutOfService = "out-of-service"
)

// Replacement is the capacity requested in the node's place.
type Replacement struct {
	Backend string `json:"backend"`
	Name    string `json:"name,omitempty"`
	Pool    string `json:"pool,omitempty"`
	// Capacity is the kind of capacity, if the kind was chosen and not left to the pool.
	Capacity string `json:"capacity,omitempty"`

	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`

	// Tried lists, separated by commas, the pools where a replacement was requested and came to
	// nothing, each with its Capacity behind a slash. We ask none of them a second time.
	Tried string `json:"tried,omitempty"`

	// Detached: the node's instance has left its Auto Scaling group for the replacement. It can't go
	// back, whatever becomes of the replacement.
	Detached bool `json:"detached,omitempty"`
}

// Attempts is how many pools were tried in vain.
func (r Replacement) Attempts() int {
	if r.Tried == "" {
		return 0
	}
	return strings.Count(r.Tried, ",") + 1
}

// Pods counts the pods that had to leave the node, each once. Until the drain has ended only
// Total is set.
type Pods struct {
	Total     int `json:"total"`
	Graceful  int `json:"graceful,omitempty"`  // had all the grace that it asked for
	Truncated int `json:"truncated,omitempty"` // had less, as EC2 left no more time
	Forced    int `json:"forced,omitempty"`    // was deleted past its disruption budget
	Left      int `json:"left,omitempty"`      // was still there at the deadline

	// Refusal is why a pod could not be evicted, in the API server's words.
	Refusal string `json:"refusal,omitempty"`
}

// Outcome is what became of some of the pods.
type Outcome struct {
	Name string // as programs read it
	Pods int
}

// EachOutcome lists all outcomes, with the number of pods of each.
func (p Pods) EachOutcome() []Outcome {
	return []Outcome{{"graceful", p.Graceful}, {"truncated", p.Truncated}, {"forced", p.Forced}, {"left", p.Left}}
}

// Outcomes are those of at least one pod.
func (p Pods) Outcomes() []Outcome {
	return slices.DeleteFunc(p.EachOutcome(), func(o Outcome) bool { return o.Pods == 0 })
}

// String says for people what became of how many.
func (o Outcome) String() string { return fmt.Sprintf("%d %s", o.Pods, OutcomeText(o.Name)) }

// OutcomeText says for people what became of a pod.
func OutcomeText(name string) string {
	switch name {
	case "truncated":
		return "grace period cut short"
	case "forced":
		return "force-deleted"
	case "left":
		return "not evicted"
	}
	return name
}

// Rehearsed reports whether the record was made up by an operator, and not by EC2.
func (r Record) Rehearsed() bool { return r.Source == Rehearsal }

// Returns reports whether the record is of a node that goes back to spot, and that EC2 leaves alone.
func (r Record) Returns() bool { return r.Kind == RebalanceRecommendation && r.Source == Return }

// ParseRecord reads a record back from the annotation's text. Anybody may have edited the text,
// so it checks the fields that a drain rests on, and refuses more of anything than we write.
func ParseRecord(text string) (Record, error) {
	if len(text) > maxRecord {
		return Record{}, fmt.Errorf("parse record: %d bytes, want at most %d", len(text), maxRecord)
	}
	var r Record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Record{}, fmt.Errorf("parse record: %w", err)
	}
	if r.Kind.strength() == 0 {
		return Record{}, fmt.Errorf("parse record: unknown kind %q", r.Kind)
	}
	if !slices.Contains(Phases(), r.Phase) {
		return Record{}, fmt.Errorf("parse record: unknown phase %q", r.Phase)
	}
	if err := r.bounded(); err != nil {
		return Record{}, fmt.Errorf("parse record: %w", err)
	}
	// What we write back can be longer than what we read. It must not be too long to be read again.
	if len(text) > neverTooLong {
		if n := len(r.String()); n > maxRecord {
			return Record{}, fmt.Errorf("parse record: %d bytes when written again, want at most %d", n, maxRecord)
		}
	}
	return r, nil
}

type knownFields Record // without the methods

// UnmarshalJSON also keeps the fields that only a newer version knows. A record is read whenever anything happens on
// its node, and hardly any has such fields, so the slower second pass is only for those that do.
func (r *Record) UnmarshalJSON(text []byte) error {
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	var all knownFields
	if strict.Decode(&all) == nil {
		*r = Record(all)
		return nil
	}
	if err := json.Unmarshal(text, (*knownFields)(r)); err != nil {
		return err
	}
	r.unknown = nil
	if err := json.Unmarshal(text, &r.unknown); err != nil {
		return err
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Record]()) {
		known, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		maps.DeleteFunc(r.unknown, func(name string, _ json.RawMessage) bool {
			return strings.EqualFold(name, known) // as encoding/json compares them
		})
	}
	return nil
}

// MarshalJSON also writes those fields.
func (r Record) MarshalJSON() ([]byte, error) {
	known, err := json.Marshal(knownFields(r))
	if err != nil || len(r.unknown) == 0 {
		return known, err
	}
	unknown, err := json.Marshal(r.unknown)
	return slices.Concat(known[:len(known)-1], []byte(","), unknown[1:]), err
}

// String is the annotation's text.
func (r Record) String() string {
	b, err := json.Marshal(r)
	if err != nil { // cannot happen: every field has a JSON form, except years past 9999
		return "{}"
	}
	return string(b)
}

// MarshalZerologObject adds the fields that every line of an interruption carries.
func (r Record) MarshalZerologObject(e *zerolog.Event) {
	e.Str("instance_id", r.Instance).Str("kind", string(r.Kind)).Str("source", string(r.Source))
	if d := r.Deadline; !d.IsZero() {
		e.Time("deadline", d).Float64("remaining_seconds", time.Until(d).Seconds())
	}
}
