package placeholder

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apicache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/rewatch"
)

// store knows our placeholders from one watch, and those that were just made and that the
// watch has not shown yet.
type store struct {
	shown  *rewatch.Watch[*corev1.Pod]
	notify func(node string)

	deleted sync.Map // the UIDs of those that we deleted, until the watch shows it

	mu      sync.Mutex
	unseen  map[string]map[string]unseen // by instance and name
	waiting map[string]struct{}          // nodes that asked before the first list; nil once there is one

	// taken are the instances with a placeholder that had a place until others removed it, such as
	// by preemption.
	taken *apicache.LRUExpireCache
	// takenPods are those placeholders, by owner and name. A repeated request doesn't make them again.
	takenPods *apicache.LRUExpireCache
}

// maxTaken and maxTakenPods bound how many of them are remembered.
const (
	maxTaken     = 5000
	maxTakenPods = 20_000
)

// takenPod is a placeholder, by its PodTemplate's UID and its name.
type takenPod struct {
	owner types.UID
	name  string
}

// unseen is a placeholder that the watch has not shown yet.
type unseen struct {
	node string    // the interrupted one
	at   time.Time // when it was asked for
}

const byInstance = "instance"

func newStore(client Pods, selector string, notify func(node string), logger zerolog.Logger) *store {
	s := &store{
		notify:  notify,
		unseen:  map[string]map[string]unseen{},
		waiting: map[string]struct{}{},

		taken:     apicache.NewLRUExpireCache(maxTaken),
		takenPods: apicache.NewLRUExpireCache(maxTakenPods),
	}
	list := rewatch.Of(client, func(o *metav1.ListOptions) { o.LabelSelector = selector })
	s.shown = rewatch.New(rewatch.Options[*corev1.Pod, *corev1.Pod]{
		Source:  cache.ToListWatcherWithWatchListSemantics(list, client),
		Keep:    lean,
		Indexes: map[string]func(*corev1.Pod) []string{byInstance: func(pod *corev1.Pod) []string { return []string{pod.Labels[Label]} }},
		Changed: func(before, after *corev1.Pod) {
			if before == nil || after == nil || !same(before, after) {
				s.saw(cmp.Or(after, before), after == nil)
			}
		},
		Logger: logger,
	})
	return s
}

// listed notes that the first list has come.
func (s *store) listed() {
	s.mu.Lock()
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	for node := range waiting { // the watch might show no placeholder of it
		s.notify(node)
	}
}

// saw takes in what the watch has shown.
func (s *store) saw(pod *corev1.Pod, gone bool) {
	s.mu.Lock()
	s.forgetLocked(pod.Labels[Label], pod.Name)
	if _, ours := s.deleted.Load(pod.UID); gone && !ours && pod.Spec.NodeName != "" {
		s.taken.Add(pod.Labels[Label], nil, patience)
		for _, owner := range pod.OwnerReferences {
			s.takenPods.Add(takenPod{owner.UID, pod.Name}, nil, patience)
		}
	}
	if gone {
		s.deleted.Delete(pod.UID)
	}
	s.mu.Unlock()
	s.notify(pod.Annotations[nodeAnnotation])
}

// same reports whether nothing has changed that a replacement's state depends on.
func same(a, b *corev1.Pod) bool {
	return a.UID == b.UID && a.Spec.NodeName == b.Spec.NodeName && a.Status.Phase == b.Status.Phase &&
		a.DeletionTimestamp.IsZero() == b.DeletionTimestamp.IsZero()
}

// synced reports whether all placeholders are known. If not, the node is notified when they
// are.
func (s *store) synced(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != nil {
		s.waiting[node] = struct{}{}
	}
	return s.waiting == nil
}

// podsOf lists the placeholders of an instance that have not ended, and says how many more were
// made that the watch has not shown yet.
func (s *store) podsOf(instance string) (pods []*corev1.Pod, unseen int) {
	shown := s.shown.By(byInstance, instance)
	s.mu.Lock()
	defer s.mu.Unlock()
	pods = slices.DeleteFunc(shown, func(pod *corev1.Pod) bool {
		_, deleted := s.deleted.Load(pod.UID)
		return deleted || pod.DeletionTimestamp != nil
	})
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods, len(s.unseen[instance])
}

// has reports whether the watch has shown the placeholder.
func (s *store) has(instance, name string) bool {
	pods, _ := s.podsOf(instance)
	return slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Name == name })
}

// wasTaken reports whether others have removed the placeholder from its place.
func (s *store) wasTaken(owner types.UID, name string) bool {
	_, taken := s.takenPods.Get(takenPod{owner, name})
	return taken
}

// expect notes a placeholder that is about to be made. Call it before the request, as only
// what the watch shows afterwards counts.
func (s *store) expect(instance, name, node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unseen[instance] == nil {
		s.unseen[instance] = map[string]unseen{}
	}
	s.unseen[instance][name] = unseen{node, time.Now()}
}

// forget drops the expectation of a placeholder, or of all of the instance's if the name is
// empty. It returns the placeholder's node.
func (s *store) forget(instance, name string) (node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	node = s.unseen[instance][name].node
	s.forgetLocked(instance, name)
	return node
}

func (s *store) forgetLocked(instance, name string) {
	delete(s.unseen[instance], name)
	if name == "" || len(s.unseen[instance]) == 0 {
		delete(s.unseen, instance)
	}
}

// overdue lists, by instance, the placeholders that were made before the time and that the
// watch has not shown.
func (s *store) overdue(since time.Time) map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := map[string][]string{}
	for instance, names := range s.unseen {
		for name, e := range names {
			if e.at.Before(since) {
				list[instance] = append(list[instance], name)
			}
		}
	}
	return list
}

// lean keeps what we need to know of a placeholder.
func lean(pod *corev1.Pod) *corev1.Pod {
	slim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			DeletionTimestamp: pod.DeletionTimestamp,
			OwnerReferences:   pod.OwnerReferences[:min(len(pod.OwnerReferences), 1)],
			Labels:            map[string]string{Label: pod.Labels[Label]},
			Annotations:       map[string]string{},
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	for _, key := range []string{nodeAnnotation, podUIDAnnotation, expiresAnnotation} {
		slim.Annotations[key] = pod.Annotations[key]
	}
	return slim
}
