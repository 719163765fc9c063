package plan

import (
	"cmp"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// Replica is the part of a pod that its Deployment's ledger needs. In a burst the pods of
// every Deployment are kept, ten times as many as run on the interrupted nodes.
type Replica struct {
	metav1.ObjectMeta // name, UID, resource version and creation

	leaving  bool // terminating, or finished
	surged   bool
	at       time.Time // when it was surged, by our clock
	owned    bool      // by a ReplicaSet
	ready    bool
	since    time.Time // when it became Ready
	homeless bool      // the scheduler finds no node for it
}

// Unschedulable reports whether the scheduler has found no node for the pod.
func Unschedulable(pod *corev1.Pod) bool {
	c := Condition(pod, corev1.PodScheduled)
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
}

// ReplicaOf reads a pod.
func ReplicaOf(pod *corev1.Pod) *Replica {
	m := &Replica{
		ObjectMeta: metav1.ObjectMeta{
			Name:              pod.Name,
			Namespace:         pod.Namespace,
			UID:               pod.UID,
			ResourceVersion:   pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp,
		},
		leaving: pod.DeletionTimestamp != nil || Finished(pod),
		surged:  IsSurged(pod),
	}
	if m.surged {
		m.at = surgeNoteOf(pod).At
	}
	owner := metav1.GetControllerOf(pod)
	m.owned = owner != nil && owner.Kind == "ReplicaSet"
	m.since, m.ready = Ready(pod)
	m.homeless = Unschedulable(pod)
	return m
}

// replicaLedger adds up a Deployment's pods, and those of our own requests that they do not show
// yet. All its pods, surged or not, come from one stream, so none is counted twice while a
// ReplicaSet catches up. Its methods are not safe for concurrent use.
type replicaLedger struct {
	surging   map[types.UID]struct{} // asked for, and not seen in the stream
	evicting  map[types.UID]struct{}
	returning map[types.UID]struct{}

	lacking time.Time // since when replacement pods cannot be made; zero if they can
	gaveUp  string    // why no pod is surged any more
}

// newReplicaLedger returns one that knows of no request.
func newReplicaLedger() *replicaLedger {
	return &replicaLedger{surging: map[types.UID]struct{}{}, evicting: map[types.UID]struct{}{}, returning: map[types.UID]struct{}{}}
}

// failsFor is how long a ReplicaSet has to fail before pods are given back to it. It tries again
// after 5 ms, and then each time after twice as long: conflicts, as over a quota with room, are
// over by then.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/controller/replicaset/replica_set.go
const failsFor = 2 * time.Second

// State is what plans are made with, from all pods that the Deployment selects, surged ones among
// them, and when it changes by the clock alone; zero if it does not. A nil Deployment does not exist.
func (l *replicaLedger) State(now time.Time, d *Deployment, pods []*Replica) (DeploymentState, time.Time) {
	w, next := l.Count(now, d, pods)
	switch {
	case w.Lacking == 0:
		l.lacking = time.Time{}
	case l.lacking.IsZero():
		l.lacking = now
		fallthrough
	case now.Before(l.lacking.Add(failsFor)):
		w.Lacking = 0
		next = interruption.Earlier(next, l.lacking.Add(failsFor))
	}
	if w.Selector != nil {
		w.Refuses = cmp.Or(w.Refuses, l.gaveUp)
	}
	return w, next
}

// giveUpSurges has no more pods of the Deployment surged, and reports whether that is new.
func (l *replicaLedger) giveUpSurges(reason string) bool {
	if l.gaveUp != "" {
		return false
	}
	l.gaveUp = "was surged in vain: " + reason
	return true
}

// clockSkew is how much the API server's clock, which dates pods, can differ from ours.
const clockSkew = 10 * time.Second

// Count returns a Deployment's state, and when it will change by the clock alone: when
// a Ready pod becomes available.
func (l *replicaLedger) Count(now time.Time, d *Deployment, pods []*Replica) (DeploymentState, time.Time) {
	l.forget(pods)
	if d == nil || !d.DeletionTimestamp.IsZero() {
		return DeploymentState{}, time.Time{}
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return DeploymentState{}, time.Time{}
	}
	c, next := l.counts(now, d, pods)
	w := DeploymentState{
		Selector:  selector,
		Refuses:   d.refuses(),
		MinReady:  time.Duration(d.Spec.MinReadySeconds) * time.Second,
		Slots:     max(0, d.maxSurge()-c.surged-len(l.surging)),
		Surging:   len(l.surging),
		Evictable: max(0, c.available+c.extra-d.Replicas()),
	}
	// Without any surge the ReplicaSet would have those that wait and those that were there
	// before. What is owned since then are replacement pods.
	w.Excess = max(0, c.waiting-d.Replicas(), min(c.waiting, c.waiting+c.before-d.Replicas(), w.Evictable))
	if d.failure() != "" {
		w.Lacking = max(0, min(c.waiting, d.Replicas()-c.owned))
	}
	w.Unplaced = max(0, min(c.waiting, c.homeless-len(l.returning)))
	return w, next
}

// replicaCounts is how many pods a Deployment has.
type replicaCounts struct {
	owned     int // by a ReplicaSet, or given back to it
	available int // of those, for minReadySeconds
	before    int // of those, since before any was surged
	homeless  int // of those, without a node, as the scheduler finds none
	surged    int // even one that is being evicted: it is there until it terminates
	extra     int // of those, Ready and not being evicted
	waiting   int // of those, neither being evicted nor given back
}

func (l *replicaLedger) counts(now time.Time, d *Deployment, pods []*Replica) (c replicaCounts, next time.Time) {
	first := l.firstSurged(pods)
	for _, pod := range pods {
		_, evicting := l.evicting[pod.UID]
		_, returning := l.returning[pod.UID]
		switch {
		case pod.leaving:
			continue
		case pod.surged:
			c.surged++
			if pod.ready && !evicting {
				c.extra++
			}
			if !evicting && !returning {
				c.waiting++
			}
		}
		if returning {
			c.owned++
		}
		if !pod.owned || pod.surged || evicting {
			continue
		}
		c.owned++
		if pod.homeless {
			c.homeless++
		}
		if pod.CreationTimestamp.Time.Before(first.Add(-clockSkew)) {
			c.before++
		}
		from := pod.since.Add(time.Duration(d.Spec.MinReadySeconds) * time.Second)
		switch {
		case !pod.ready:
		case !now.Before(from):
			c.available++
		default:
			next = interruption.Earlier(next, from)
		}
	}
	return c, next
}

// firstSurged is when the first of those that wait was surged; zero if none waits.
func (l *replicaLedger) firstSurged(pods []*Replica) (first time.Time) {
	for _, pod := range pods {
		if pod.surged && !pod.leaving {
			first = interruption.Earlier(first, pod.at)
		}
	}
	return first
}

// forget drops the requests whose effect the pods show.
func (l *replicaLedger) forget(pods []*Replica) {
	present := make(map[types.UID]*Replica, len(pods))
	for _, pod := range pods {
		present[pod.UID] = pod
	}
	done := func(requests map[types.UID]struct{}, shows func(*Replica) bool) {
		maps.DeleteFunc(requests, func(uid types.UID, _ struct{}) bool {
			pod := present[uid]
			return pod == nil || pod.leaving || shows(pod)
		})
	}
	done(l.surging, func(pod *Replica) bool { return pod.surged })
	done(l.evicting, func(*Replica) bool { return false })
	done(l.returning, func(pod *Replica) bool { return pod.owned && !pod.surged })
}

// reserve enters what is about to be requested, if there is room for it now besides those that go
// before it; in any case if ahead is negative.
func (l *replicaLedger) reserve(now time.Time, d *Deployment, pods []*Replica, pod *corev1.Pod, action Action, ahead int) bool {
	w, _ := l.Count(now, d, pods)
	if w.offers(action) <= ahead || action == SurgeNow && l.gaveUp != "" {
		return false
	}
	if requests := l.requests(action); requests != nil {
		requests[pod.UID] = struct{}{}
	}
	return true
}

// requests are those of that action.
func (l *replicaLedger) requests(action Action) map[types.UID]struct{} {
	switch action {
	case SurgeNow:
		return l.surging
	case Evict, End, Force:
		return l.evicting
	case Return:
		return l.returning
	}
	return nil
}

// offers is how often the Deployment has what the action takes.
func (w DeploymentState) offers(action Action) int {
	switch action {
	case SurgeNow:
		if w.Selector == nil || w.Refuses != "" {
			return 0
		}
		return w.Slots
	case Evict:
		return w.Evictable
	case End:
		return w.Excess
	case Return:
		return w.Lacking + w.Unplaced
	}
	return 0
}

// release drops what was reserved for a pod whose request was refused. What it was granted before stays.
func (l *replicaLedger) release(pod types.UID, action Action) { delete(l.requests(action), pod) }

// DeploymentState is what a plan knows about a Deployment.
type DeploymentState struct {
	// Selector is the Deployment's; nil if there is no Deployment of that name.
	Selector labels.Selector
	// Refuses says why the Deployment's pods cannot be surged now, or is empty.
	Refuses string
	// Slots is how many more pods can be surged at this moment.
	Slots int
	// Surging is how many pods have been asked to be surged and do not show it yet.
	Surging int
	// MinReady is how long a pod has to be Ready before it is available.
	MinReady time.Duration
	// Evictable is how many surged pods can go while as many pods as the Deployment asks for
	// stay available.
	Evictable int
	// Excess is how many surged pods the ReplicaSet would have ended if it still had them, as
	// the Deployment asks for fewer now.
	Excess int
	// Lacking is how many surged pods have no replacement pod, as none can be made.
	Lacking int
	// Unplaced is how many surged pods have a replacement pod that the scheduler finds no node for.
	Unplaced int
}
