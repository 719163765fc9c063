package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// member is the part of a pod that its Deployment's tally needs. In a burst the pods of
// every Deployment are kept, ten times as many as run on the interrupted nodes.
type member struct {
	metav1.ObjectMeta // name, UID and resource version

	leaving bool // terminating, or finished
	surged  bool
	owned   bool // by a ReplicaSet
	ready   bool
	since   time.Time // when it became Ready
}

func memberOf(pod *corev1.Pod) *member {
	m := &member{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion},
		leaving:    pod.DeletionTimestamp != nil || finished(pod),
		surged:     surged(pod),
	}
	owner := metav1.GetControllerOf(pod)
	m.owned = owner != nil && owner.Kind == "ReplicaSet"
	m.since, m.ready = ready(pod)
	return m
}

// tally adds up a Deployment's pods, and those of our own requests that they do not show
// yet. All its pods, surged or not, come from one stream, so none is counted twice while a
// ReplicaSet catches up. Its methods are not safe for concurrent use.
type tally struct {
	surging  map[types.UID]struct{} // asked for, and not seen in the stream
	evicting map[types.UID]struct{}
}

func newTally() *tally {
	return &tally{surging: map[types.UID]struct{}{}, evicting: map[types.UID]struct{}{}}
}

// count returns a Deployment's workload, and when it will change by the clock alone: when
// a Ready pod becomes available.
func (l *tally) count(now time.Time, d *deployment, pods []*member) (w Workload, next time.Time) {
	present := make(map[types.UID]bool, len(pods))
	available, extra, surged := 0, 0, 0
	minReady := time.Duration(0)
	if d != nil {
		minReady = time.Duration(d.Spec.MinReadySeconds) * time.Second
	}
	for _, pod := range pods {
		present[pod.UID] = true
		_, evicting := l.evicting[pod.UID]
		if pod.leaving {
			delete(l.evicting, pod.UID)
			delete(l.surging, pod.UID)
			continue
		}
		if pod.surged {
			delete(l.surging, pod.UID)
			surged++ // even one that is being evicted: it is there until it terminates
			if pod.ready && !evicting {
				extra++
			}
			continue
		}
		if !pod.owned || evicting || !pod.ready {
			continue
		}
		if from := pod.since.Add(minReady); now.Before(from) {
			if next.IsZero() || from.Before(next) {
				next = from
			}
			continue
		}
		available++
	}
	for _, pending := range []map[types.UID]struct{}{l.surging, l.evicting} {
		for uid := range pending {
			if !present[uid] {
				delete(pending, uid)
			}
		}
	}
	if d == nil || !d.DeletionTimestamp.IsZero() {
		return Workload{}, next
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return Workload{}, next
	}
	return Workload{
		Selector: selector,
		Refuses:  d.refuses(),
		Slots:    max(0, d.maxSurge()-surged-len(l.surging)),
		Spare:    max(0, available+extra-d.replicas()),
	}, next
}

// reserve enters a surge or an eviction that is about to be requested, if there is room for
// it now.
func (l *tally) reserve(now time.Time, d *deployment, pods []*member, pod *corev1.Pod, action Action) bool {
	w, _ := l.count(now, d, pods)
	switch {
	case action == SurgeNow && w.Selector != nil && w.Refuses == "" && w.Slots > 0:
		l.surging[pod.UID] = struct{}{}
	case action == Evict && w.Selector == nil:
	case action == Evict && w.Spare > 0:
		l.evicting[pod.UID] = struct{}{}
	default:
		return false
	}
	return true
}

// settle drops what was reserved for a pod whose request was refused.
func (l *tally) settle(pod types.UID) {
	delete(l.surging, pod)
	delete(l.evicting, pod)
}
