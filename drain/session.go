package drain

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// session is the drain of one node: a watch of its pods, and what has become of
// each since the drain began.
type session struct {
	node       string
	store      cache.Store
	controller cache.Controller
	stop       context.CancelFunc
	ctx        context.Context // ends with stop
	started    time.Time

	mu       sync.Mutex
	in       Interruption
	policy   Policy
	tracked  map[types.UID]*tracked
	begun    bool
	deadline time.Time
}

// tracked is one pod that has to leave, from when it was first seen.
type tracked struct {
	queued    bool // its eviction is in the queue or under way
	evicted   bool // the API server has taken the eviction, or said that the pod is gone
	truncated bool // with less grace than the pod asks for
	forced    bool // past its disruption budget
	refusal   string
	gone      bool
}

// startSession starts the watch of a node's pods. The watch ends with ctx or stop. It
// takes a place in starting until the pods are known.
func startSession(ctx context.Context, node string, client rest.Interface, starting *semaphore.Weighted, notify func()) *session {
	s := &session{node: node, started: time.Now(), tracked: map[types.UID]*tracked{}}
	s.ctx, s.stop = context.WithCancel(ctx)
	lw := cache.NewFilteredListWatchFromClient(client, "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	})
	s.store, s.controller = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw,
		ObjectType:    &corev1.Pod{},
		Transform:     lean,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { notify() },
			UpdateFunc: func(_, _ any) { notify() },
			DeleteFunc: func(any) { notify() },
		},
	})
	go func() {
		if starting.Acquire(s.ctx, 1) != nil {
			return
		}
		defer starting.Release(1)
		go s.controller.RunWithContext(s.ctx)
		select { // a node without pods has no event to notify of
		case <-s.controller.HasSyncedChecker().Done():
			notify()
		case <-s.ctx.Done():
		}
	}()
	return s
}

func (s *session) synced() bool { return s.controller.HasSynced() }

func (s *session) view(now time.Time, in Interruption, policy Policy) View {
	var pods []*corev1.Pod
	for _, obj := range s.store.List() {
		if pod, ok := obj.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	v := View{Plan: Plan(now, pods, in, policy)}
	for _, d := range v.Plan {
		switch {
		case d.Moves():
			v.Moving = append(v.Moving, d.Pod)
		case IsDaemon(d.Pod):
			v.Daemons = append(v.Daemons, d.Pod)
		}
	}
	return v
}

// advance plans anew and returns the evictions that are due and not under way yet.
func (s *session) advance(now time.Time, in Interruption, policy Policy) (Status, []*task) {
	view := s.view(now, in, policy)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in, s.policy = in, policy

	var due []*task
	status := Status{View: view, Done: true}
	present := make(map[types.UID]bool, len(view.Plan))
	for _, d := range view.Plan {
		if !d.Moves() {
			continue
		}
		present[d.Pod.UID] = true
		status.Done = false
		t := s.tracked[d.Pod.UID]
		if t == nil {
			t = &tracked{}
			s.tracked[d.Pod.UID] = t
		}
		switch d.Action {
		case Wait:
			t.evicted, t.refusal = true, ""
			s.begun = true
		case Evict:
			s.begun = true
			if !t.queued && !t.evicted {
				t.queued = true
				due = append(due, &task{session: s, pod: d.Pod, state: t, latest: d.At})
			}
		case Later:
			if status.Next.IsZero() || (!d.At.IsZero() && d.At.Before(status.Next)) {
				status.Next = d.At
			}
		}
	}
	for uid, t := range s.tracked {
		t.gone = !present[uid]
	}
	status.Total, status.Begun = len(s.tracked), s.begun
	return status, due
}

// decision is the present plan for a pod whose eviction has come to the head of the
// queue: the deadline or the pod may have changed since it was put there.
func (s *session) decision(now time.Time, pod *corev1.Pod) (Decision, bool) {
	obj, ok, err := s.store.Get(pod)
	if err != nil || !ok {
		return Decision{}, false
	}
	current, ok := obj.(*corev1.Pod)
	if !ok || current.UID != pod.UID {
		return Decision{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return decide(now, current, s.in, s.policy), true
}

// note changes what is known of a pod.
func (s *session) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *session) blocked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, t := range s.tracked {
		if t.refusal != "" && !t.gone && !t.evicted {
			n++
		}
	}
	return n
}

func (s *session) result() Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	var r Result
	for _, t := range s.tracked {
		r.Total++
		switch {
		case !t.gone && !t.evicted:
			r.Left++
		case t.forced:
			r.Forced++
		case t.truncated, !t.gone:
			r.Truncated++
		default:
			r.Graceful++
		}
		if t.refusal != "" && !t.gone && !t.evicted {
			r.Refusal = t.refusal
		}
	}
	return r
}

// lean drops of a pod what no plan and no replacement reads: the most of it.
func lean(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	slim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:                       pod.Name,
			Namespace:                  pod.Namespace,
			UID:                        pod.UID,
			ResourceVersion:            pod.ResourceVersion,
			DeletionTimestamp:          pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			Labels:                     pod.Labels,
			Annotations:                map[string]string{},
			OwnerReferences:            pod.OwnerReferences,
		},
		Spec: corev1.PodSpec{
			NodeName:                      pod.Spec.NodeName,
			TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
			NodeSelector:                  pod.Spec.NodeSelector,
			Affinity:                      pod.Spec.Affinity,
			Tolerations:                   pod.Spec.Tolerations,
			Overhead:                      pod.Spec.Overhead,
			Resources:                     pod.Spec.Resources,
			Containers:                    leanContainers(pod.Spec.Containers),
			InitContainers:                leanContainers(pod.Spec.InitContainers),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	for _, key := range []string{corev1.MirrorPodAnnotationKey, doNotDisrupt, safeToEvict} {
		if value, ok := pod.Annotations[key]; ok {
			slim.Annotations[key] = value
		}
	}
	return slim, nil
}

func leanContainers(containers []corev1.Container) []corev1.Container {
	if len(containers) == 0 {
		return nil
	}
	slim := make([]corev1.Container, len(containers))
	for i, c := range containers {
		slim[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
	}
	return slim
}
