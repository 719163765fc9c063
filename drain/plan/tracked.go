package plan

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// tracked is one pod that has to leave, from when it was first planned for.
type tracked struct {
	node     *node
	pod      *corev1.Pod
	decision Decision  // of the last plan
	due      time.Time // see Decision.due

	group *group // in which it waits for its request; nil if it waits for none
	index int    // there

	attempt    int
	retryAt    time.Time // when its next attempt is; zero if it need not wait
	unanswered bool      // its last request was not answered in time
	surged     bool      // by us, which its node's watch might not show yet
	returned   bool      // as well
	forcing    bool      // the time has come to delete it past its disruption budget

	sent   exit
	gone   bool
	goneAt time.Time

	refusal  string    // of its eviction; empty once it was sent away
	woken    bool      // its budget seems to let it go, and it is asked for because of that
	misledAt time.Time // when it was last refused all the same
	failure  string    // what its last request failed of that says nothing about the pod
	ofBudget bool      // refused by a disruption budget
	blocked  bool      // refused for seconds
}

// exit is how a pod was sent away: what comes later overrides what comes before.
type exit int

const (
	notSent      exit = iota
	evicted           // the API server has accepted the eviction, or said that the pod is gone
	cutShort          // with less grace than it asks for
	forceDeleted      // past its disruption budget
)

// stays reports whether the pod is there and was not sent away.
func (t *tracked) stays() bool { return !t.gone && t.sent == notSent }

// send notes that the pod was sent away. It stays so, whatever its node's watch still shows: that might be
// from before.
func (t *tracked) send(by exit) {
	t.sent, t.refusal = max(t.sent, by), ""
	delete(t.node.refused, t.pod.UID)
}

// wantsRequest reports whether a request is to be made for the pod as soon as it can be.
func (f *Fleet) wantsRequest(t *tracked) bool {
	n, d := t.node, t.decision
	switch {
	case !n.draining, n.canceled, !t.stays(), !t.retryAt.IsZero():
		return false
	case f.underWay[t.pod.UID]: // perhaps for a drain of its node that has ended
		return false
	case d.Action == SurgeNow && t.surged, d.Action == Return && t.returned: // the node's watch has not shown it yet
		return false
	}
	return d.Action.Requests() || d.Waits
}

func byPod(a, b *tracked) int {
	return cmp.Or(
		cmp.Compare(a.pod.Namespace, b.pod.Namespace),
		cmp.Compare(a.pod.Name, b.pod.Name),
		cmp.Compare(a.pod.UID, b.pod.UID),
		byNode(a.node, b.node),
	)
}

// decided takes in what was decided about a pod that has to leave.
func (f *Fleet) decided(t *tracked, d Decision) {
	n, was := t.node, t.due
	t.decision, t.due = d, d.due()
	ready := n.state.Capacity == ReadyCapacity
	switch {
	case d.Action == Wait:
		t.send(evicted)
		n.begun = true
	case t.sent != notSent:
	case d.Waits:
		n.begun = n.begun || ready && IsSurged(d.Pod)
	case d.Action != Hold:
		n.begun = n.begun || d.Action == Evict || d.Action == Force || d.Action == SurgeNow && ready
	}
	if d.Action == Force && !t.forcing {
		t.forcing = true
		f.wait(t, time.Time{}) // whatever its budget says
	}
	// One that was not due yet waits no longer than until it is.
	early := was.IsZero() || f.now.Before(was)
	if !t.retryAt.IsZero() && !t.due.Equal(was) && early && !t.due.IsZero() && t.due.Before(t.retryAt) {
		f.wait(t, interruption.Later(t.due, f.now))
	}
	f.place(t)
}

// trackPod returns what is known of a pod that has to leave.
func (f *Fleet) trackPod(n *node, pod *corev1.Pod) *tracked {
	t := n.tracked[pod.UID]
	if t == nil {
		t = f.newTracked(n, pod)
		n.tracked[pod.UID] = t
	}
	t.pod = pod
	return t
}

func (f *Fleet) newTracked(n *node, pod *corev1.Pod) *tracked {
	t := &tracked{node: n, pod: pod, sent: f.sent[pod.UID]}
	if CutShort(pod) { // an earlier leader has evicted it late
		t.sent = cutShort
	}
	return t
}
