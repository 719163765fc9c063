// Package workloads tells pods that ask for it of the end of their node, and hears what they
// answer: with a POST to the pod itself, and with annotations that a volume of the downward API
// shows as files.
//
// Nothing here blocks or fails, and no drain waits for it. A pod that is not reached is told by
// SIGTERM, like any other. An answer moves the pod that gave it, and its gang, within what a plan
// allows. A process that takes over tells again, with the same ids.
package workloads

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
)

// Options configure a Teller.
type Options struct {
	// On: without it nobody is told.
	On bool
	// Networks are where pods are told; empty is anywhere but on this machine and its link.
	Networks []netip.Prefix
	// HostNetwork: pods on their host's network are told, too.
	HostNetwork bool

	// Pods is the REST client of core/v1.
	Pods rest.Interface
	// Answered is called with what a pod has answered. It must not block.
	Answered func(node string, pod types.UID, when drain.When)
	// Leaves reports whether a gang's pods on a node have to leave it by a deadline: they are told
	// of that, and not of their peers.
	Leaves func(node string, gang drain.Gang) bool
	Events Events

	UserAgent  string
	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// Events tells people about single pods. It must not block.
type Events interface {
	AnnotationMeaningless(node string, pod *corev1.Pod, text string, ofNamespace bool)
}

const (
	// posts is how many pods are told at the same time: a pod that hangs takes four seconds, and
	// the others have two minutes.
	posts = 512
	// notes is how many pods' annotations are written at the same time: evictions matter more.
	notes = 8
)

// Teller tells pods. Its methods are safe for concurrent use.
type Teller struct {
	opts    Options
	client  *http.Client
	timeout time.Duration // of one attempt
	results *prometheus.CounterVec
	posts   *lane
	notes   *lane
	lists   *lane
	refused atomic.Bool // that annotations must not be written was logged

	mu     sync.Mutex
	byNode map[string]map[types.UID]*told
	gangs  map[string]map[drain.Gang]*told // what those on other nodes were told, by the node that ends
	// toPeers is what they have to be told when they have been looked up.
	toPeers map[drain.Gang][]going
}

// told is what a pod was told last.
type told struct {
	deadline, evictBy time.Time
	ready             bool // that the replacement is Ready
}

// tightened reports whether there is less time than was told.
func (t *told) tightened(deadline, evictBy time.Time) bool {
	return earlier(deadline, t.deadline, 0) || earlier(evictBy, t.evictBy, shift)
}

// New returns a Teller. It makes no call and starts nothing.
func New(o Options) *Teller {
	return &Teller{
		opts: o, client: newClient(), timeout: attemptTimeout, results: newResults(o.Registerer),
		posts: newLane(posts), notes: newLane(notes), lists: newLane(lists), byNode: map[string]map[types.UID]*told{},
		gangs: map[string]map[drain.Gang]*told{}, toPeers: map[drain.Gang][]going{},
	}
}

// Interruption is what pods are told of.
type Interruption struct {
	Node   string
	Record interruption.Record
	// Deadline is when the drain has to be done; zero if there is no hurry.
	Deadline time.Time
	// Replacement is the state of the node's replacement; empty if none was requested.
	Replacement string
	// Ready: it takes pods.
	Ready bool
}

// shift is how much earlier a pod's latest eviction has to be than it was told, to tell it again:
// the waves of a budget shift by a second or two all the time.
const shift = 5 * time.Second

// Tell tells the pods of a plan what they have not been told yet. It may be called at any time,
// and returns at once.
func (t *Teller) Tell(ctx context.Context, in Interruption, plan []drain.Decision) {
	if !t.opts.On {
		return
	}
	for _, d := range plan {
		if d.Notice == "" || d.Notice != drain.NoticeFiles && d.Pod.Status.PodIP == "" { // it is starting
			continue
		}
		if what := t.news(in, d); what != "" {
			t.tell(ctx, in, what, d)
		}
	}
	for _, g := range goings(in, plan) {
		if t.newsOfGang(g) {
			t.tellPeers(ctx, g)
		}
	}
}

// news is what the pod has to be told, or empty; it is taken as told from then on.
func (t *Teller) news(in Interruption, d drain.Decision) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	pods := t.byNode[in.Node]
	if pods == nil {
		pods = map[types.UID]*told{}
		t.byNode[in.Node] = pods
	}
	was, what := pods[d.Pod.UID], ""
	switch {
	case was == nil:
		was, what = &told{}, typeNotice
		pods[d.Pod.UID] = was
	case was.tightened(in.Deadline, d.At):
		what = typeNotice
	case in.Ready && !was.ready && d.Pod.Annotations[drain.NoticeReplacementAnnotation] == "true":
		what = typeReplacementReady
	default:
		return ""
	}
	was.deadline, was.evictBy, was.ready = in.Deadline, d.At, in.Ready
	return what
}

// earlier reports whether a is earlier than b by more than that; zero is never.
func earlier(a, b time.Time, by time.Duration) bool {
	return !a.IsZero() && (b.IsZero() || b.Sub(a) > by)
}

// CalledOff tells the pods that were told, by this process or by another, that the interruption
// was called off; those on other nodes only if this process has told them.
func (t *Teller) CalledOff(ctx context.Context, in Interruption, pods []*corev1.Pod) {
	if !t.opts.On {
		return
	}
	t.mu.Lock()
	told, gangs := t.byNode[in.Node], t.gangs[in.Node]
	t.mu.Unlock()
	t.Forget(in.Node)
	for _, pod := range pods {
		_, here := told[pod.UID]
		if pod.DeletionTimestamp == nil && (here || noted(pod)) {
			t.tell(ctx, in, typeCanceled, drain.Decision{Pod: pod, Notice: pod.Annotations[drain.NoticeAnnotation]})
		}
	}
	for gang := range gangs {
		t.tellPeers(ctx, going{in: in, what: typePeerCanceled, gang: gang})
	}
}

// Forget drops what is known of a node's pods.
func (t *Teller) Forget(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byNode, node)
	delete(t.gangs, node)
}

func (t *Teller) tell(ctx context.Context, in Interruption, what string, d drain.Decision) {
	ctx = context.WithoutCancel(ctx) // each request has a timeout of its own
	t.notes.do(d.Pod.UID, func() { t.note(ctx, what, in.Deadline, d) })
	if d.Notice == drain.NoticeFiles {
		return
	}
	err := t.send(ctx, in, what, d.Pod, d.Pod.UID, func(now time.Time) ([]byte, error) { return newEvent(now, in, what, d) }, func(when drain.When) {
		if what != typeCanceled {
			t.opts.Answered(in.Node, d.Pod.UID, when)
		}
	})
	if err != nil && what == typeNotice {
		t.opts.Events.AnnotationMeaningless(in.Node, d.Pod, drain.NoticeAnnotation+": "+err.Error(), false)
	}
}

// send has a pod told soon, if it has an address where it can be; of the sendings of one sequence
// only the newest is sent. answered is called with an answer that says when the pod leaves; nil if
// nobody wants to know.
func (t *Teller) send(ctx context.Context, in Interruption, what string, pod *corev1.Pod, sequence types.UID, event func(now time.Time) ([]byte, error), answered func(drain.When)) error {
	target, err := t.target(pod, pod.Annotations[drain.NoticeAnnotation])
	if err != nil {
		t.results.WithLabelValues(resultInvalid).Inc()
		t.log(in, pod).Err(err).Msg("workload is not told")
		return err
	}
	t.posts.do(sequence, func() {
		body, err := event(time.Now())
		if err != nil {
			return // cannot happen: every field has a JSON form
		}
		when, result, err := t.post(ctx, target, body)
		t.results.WithLabelValues(result).Inc()
		t.log(in, pod).Err(err).Str("event", what).Str("verdict", result).Str("action", string(when)).Msg("workload told")
		if when != "" && answered != nil {
			answered(when)
		}
	})
	return nil
}

func (t *Teller) log(in Interruption, pod *corev1.Pod) *zerolog.Event {
	return t.opts.Logger.Debug().Str("node", in.Node).Str("pod", pod.Namespace+"/"+pod.Name)
}
