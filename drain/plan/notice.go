package plan

import corev1 "k8s.io/api/core/v1"

// How a pod asks to be notified of its node's end. A plan only says which pods ask; a drain notifies
// none of them.
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

// noticeOf is what the pod asks for, or empty. Nobody is notified before it is known whether the
// namespace forbids it.
func (p *planner) noticeOf(pod *corev1.Pod) string {
	asks := pod.Annotations[NoticeAnnotation]
	preferences, known := p.Namespaces[pod.Namespace]
	gone := pod.DeletionTimestamp != nil || Finished(pod) || pod.Annotations[corev1.MirrorPodAnnotationKey] != ""
	if !known || preferences.Silent || gone {
		return ""
	}
	return asks
}
