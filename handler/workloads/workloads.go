// Package workloads notifies pods that ask for it of the end of their node, and takes what they
// answer: with a POST to the pod itself, and with annotations that a volume of the downward API
// shows as files. Pods on other nodes are not notified, even if they belong to the same gang.
//
// Nothing here blocks or fails, and no drain waits for it. A pod that is not reached is notified by
// SIGTERM, like any other. An answer moves the pod that gave it, and its gang, within what a plan
// allows. A process that takes over notifies again, with the same ids: what the process before it had not
// sent by then is dropped.
package workloads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"spot-handler/drain/fair"
	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/readcache"
)

// Options configure a Notifier.
type Options struct {
	// On: without it nobody is notified.
	On bool
	// Networks are where pods are notified, including those on their host's network. Without any, pods
	// are notified anywhere but on this machine, on its link, and at AWS's and the cluster's services,
	// and those on their host's network are not.
	Networks []netip.Prefix
	// IsNode reports whether that is a Node's address.
	IsNode func(netip.Addr) bool

	// Pods is the REST client of core/v1.
	Pods rest.Interface
	// Answered is called with what a pod has answered. It must not block.
	Answered func(node string, pod types.UID, when plan.When)
	Events   Events

	UserAgent  string
	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// Events notifies people of what pods are not notified of. It does not block.
type Events interface {
	AnnotationMeaningless(node string, pod *corev1.Pod, text string)
}

const (
	// posts is how many pods are notified at the same time, of which one namespace can have a third:
	// a pod that hangs takes four seconds, and the others have two minutes.
	posts = 1024
	// notes is how many pods' annotations are written at the same time: evictions matter more.
	notes = 16

	// waitingPosts bounds the posts that wait, and the annotations likewise, at some 300 bytes each. One
	// namespace can have a third of them.
	waitingPosts = 64 << 10
	// longestWait is how long a post waits for its place.
	longestWait = 2 * time.Minute
)

// Notifier notifies pods. Its methods are safe for concurrent use.
type Notifier struct {
	opts    Options
	client  *http.Client
	timeout time.Duration // of one attempt
	results *prometheus.CounterVec
	refused atomic.Bool // that annotations must not be written was logged

	posts, notes *fair.Lane

	services readcache.Cache[[]netip.Prefix] // the networks of the cluster's Services, under the key ""

	mu     sync.Mutex
	byNode map[string]map[types.UID]*notified
}

// notified is what a pod was last notified of.
type notified struct {
	event             string
	deadline, evictBy time.Time
	ready             bool // that the replacement is Ready
}

// outdated reports whether that is not the interruption any more, or whether there is less time.
func (t *notified) outdated(in Interruption, evictBy time.Time) bool {
	return t.event != in.Record.Event || earlier(in.Deadline, t.deadline, 0) || earlier(evictBy, t.evictBy, shift)
}

// New returns a Notifier. It makes no call and starts nothing.
func New(o Options) *Notifier {
	t := &Notifier{
		opts:    o,
		client:  newClient(),
		timeout: attemptTimeout,
		results: newResults(o.Registerer),
		posts:   fair.NewLane(posts, waitingPosts),
		notes:   fair.NewLane(notes, waitingPosts),
		byNode:  map[string]map[types.UID]*notified{},
	}
	t.services.Read, t.services.Lifetime = t.readServices, readcache.For(10*time.Minute, 5*time.Second, nil)
	return t
}

// Wait returns when nothing is under way any more, soon after the contexts of all calls have ended.
func (t *Notifier) Wait() {
	t.posts.Wait()
	t.notes.Wait()
}

// Interruption is what pods are notified of.
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

// shift is how much earlier a pod's latest eviction has to be than it was notified, to notify it again:
// the waves of a budget shift by a second or two all the time.
const shift = 5 * time.Second

// Notify notifies the pods of a plan of what they have not been notified of yet. It may be called at any time,
// and returns at once. What has not been sent when ctx ends is dropped: by then another process
// might have taken it back.
func (t *Notifier) Notify(ctx context.Context, in Interruption, decisions []plan.Decision) {
	if !t.opts.On {
		return
	}
	for _, d := range decisions {
		if d.Notice == "" || d.Notice != plan.NoticeFiles && d.Pod.Status.PodIP == "" { // it is starting
			continue
		}
		if what := t.news(in, d); what != "" {
			t.notify(ctx, in, what, d)
		}
	}
}

// news is what the pod has to be notified of, or empty; it is taken as notified from then on.
func (t *Notifier) news(in Interruption, d plan.Decision) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	pods := t.byNode[in.Node]
	if pods == nil {
		pods = map[types.UID]*notified{}
		t.byNode[in.Node] = pods
	}
	was, what := pods[d.Pod.UID], ""
	switch {
	case was == nil:
		was, what = &notified{}, typeNotice
		pods[d.Pod.UID] = was
	case was.outdated(in, d.At):
		what = typeNotice
	case in.Ready && !was.ready && d.Pod.Annotations[plan.NoticeReplacementAnnotation] == "true":
		what = typeReplacementReady
	default:
		return ""
	}
	*was = notified{event: in.Record.Event, deadline: in.Deadline, evictBy: d.At, ready: in.Ready}
	return what
}

// earlier reports whether a is earlier than b by more than that; zero is never.
func earlier(a, b time.Time, by time.Duration) bool {
	return !a.IsZero() && (b.IsZero() || b.Sub(a) > by)
}

// Canceled notifies the pods that were notified, by this process or by another, that the interruption
// was cancelled.
func (t *Notifier) Canceled(ctx context.Context, in Interruption, pods []*corev1.Pod) {
	if !t.opts.On {
		return
	}
	t.mu.Lock()
	known := t.byNode[in.Node]
	t.mu.Unlock()
	t.Forget(in.Node)
	for _, pod := range pods {
		_, here := known[pod.UID]
		if pod.DeletionTimestamp == nil && !plan.Finished(pod) && (here || noted(pod)) {
			t.notify(ctx, in, typeCanceled, plan.Decision{Pod: pod, Notice: pod.Annotations[plan.NoticeAnnotation]})
		}
	}
}

// Forget drops what is known of a node's pods.
func (t *Notifier) Forget(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byNode, node)
}

func (t *Notifier) notify(ctx context.Context, in Interruption, what string, d plan.Decision) {
	t.notes.Do(ctx, fair.Task{
		Tenant: d.Pod.Namespace,
		Who:    d.Pod.UID,
		Run:    func() { t.note(ctx, what, in.Deadline, d) },
	})
	if d.Notice == plan.NoticeFiles {
		return
	}
	if err := t.send(ctx, in, what, d); err != nil && what == typeNotice {
		t.opts.Events.AnnotationMeaningless(in.Node, d.Pod, plan.NoticeAnnotation+": "+err.Error())
	}
}

// send has a pod notified soon, if it has an address where it can be. Of what waits for the pod, a
// cancellation takes the place of all, and any other that of its own type.
func (t *Notifier) send(ctx context.Context, in Interruption, what string, d plan.Decision) error {
	pod := d.Pod
	target, err := t.target(pod, pod.Annotations[plan.NoticeAnnotation])
	if err != nil {
		t.results.WithLabelValues(resultInvalid).Inc()
		t.log(in, pod).Err(err).Msg("workload is not notified")
		return err
	}
	since := time.Now()
	over := func(o outcome) {
		t.results.WithLabelValues(o.result).Inc()
		t.log(in, pod).Err(o.err).Str("event", what).Str("verdict", o.result).Str("action", string(o.when)).Msg("workload notified")
	}
	waits := t.posts.Do(ctx, fair.Task{
		Tenant: pod.Namespace,
		Who:    pod.UID,
		What:   what,
		Ends:   what == typeCanceled,
		Run: func() {
			o := t.deliver(ctx, in, what, d, target, since)
			over(o)
			if o.when != "" && what != typeCanceled {
				t.opts.Answered(in.Node, pod.UID, o.when)
			}
		},
	})
	if !waits {
		over(outcome{result: resultDropped, err: errors.New("too many posts to its namespace wait")})
	}
	return nil
}

// deliver posts the notice that has waited for its place since then.
func (t *Notifier) deliver(ctx context.Context, in Interruption, what string, d plan.Decision, target *url.URL, since time.Time) outcome {
	now := time.Now()
	if now.Sub(since) > longestWait {
		return outcome{result: resultDropped, err: fmt.Errorf("it has waited for its place for longer than %s", longestWait)}
	}
	body, err := json.Marshal(newEvent(now, in, what, d))
	if err != nil { // a year that JSON has no form for, in a record that somebody else wrote
		return outcome{result: resultInvalid, err: fmt.Errorf("write the notice: %w", err)}
	}
	if t.ofService(ctx, target.Hostname()) {
		return outcome{result: resultInvalid, err: fmt.Errorf("%s is an address of Services", target.Hostname())}
	}
	return t.post(ctx, target, body)
}

func (t *Notifier) log(in Interruption, pod *corev1.Pod) *zerolog.Event {
	return t.opts.Logger.Debug().Str("node", in.Node).Str("pod", pod.Namespace+"/"+pod.Name)
}
