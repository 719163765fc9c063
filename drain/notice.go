package drain

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What a pod asks to hear about its node's end. Who tells it is no business of a drain: a plan
// only says who asks.
const (
	// NoticeAnnotation on a pod asks for a notice: PORT or PORT/PATH of a server in the pod, or
	// NoticeFiles. On a namespace, NoticeOff shuts out all of its pods.
	NoticeAnnotation = "spot-handler/notice"
	NoticeFiles      = "files" // the annotations below alone
	NoticeOff        = "off"

	// NoticeReplacementAnnotation with the value "true" on such a pod asks for another notice
	// when the replacement is Ready.
	NoticeReplacementAnnotation = "spot-handler/notice-replacement"

	// DeadlineAnnotation and EvictByAnnotation are what such a pod gets: when its node ends, and
	// when its eviction begins at the latest, as of RFC 3339.
	DeadlineAnnotation = "spot-handler/deadline"
	EvictByAnnotation  = "spot-handler/evict-by"
)

// noticeOf is what the pod asks for, or empty. Nobody is told before it is known whether the
// namespace forbids it.
func (p *planner) noticeOf(pod *corev1.Pod) string {
	asks := pod.Annotations[NoticeAnnotation]
	wishes, known := p.Namespaces[pod.Namespace]
	gone := pod.DeletionTimestamp != nil || Finished(pod) || pod.Annotations[corev1.MirrorPodAnnotationKey] != ""
	if !known || wishes.Silent || gone {
		return ""
	}
	return asks
}

// peersOf is the pod's gang, if its namespace lets its pods be told.
func (p *planner) peersOf(pod *corev1.Pod) Gang {
	if wishes, known := p.Namespaces[pod.Namespace]; len(p.Gangs) == 0 || !known || wishes.Silent {
		return Gang{}
	}
	return GangOf(pod)
}

// Silent reads whether a namespace forbids that its pods be notified.
func (d *Drainer) Silent(ctx context.Context, namespace string) (bool, error) {
	wishes, err := d.wishes.read(ctx, types.NamespacedName{Namespace: namespace})
	return wishes.Silent, err
}

// Leaves reports whether the gang's pods on the node have to leave it by a deadline.
func (d *Drainer) Leaves(node string, gang Gang) bool {
	return d.gangs.leaves(node, gang)
}

// Answer takes in what a pod has answered to a notice: it overrides what is annotated. It does
// nothing for a node that is not being drained.
func (d *Drainer) Answer(node string, pod types.UID, when When) {
	d.mu.Lock()
	s := d.sessions[node]
	d.mu.Unlock()
	if s == nil {
		return
	}
	s.note(func() { s.answers[pod] = when })
	d.opts.Notify(node)
}
