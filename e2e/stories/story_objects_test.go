package stories

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// record reads the record of a Node.
func record(node *corev1.Node) (interruption.Record, bool) {
	if node == nil {
		return interruption.Record{}, false
	}
	rec, err := interruption.ParseRecord(node.Annotations[interruption.Annotation])
	return rec, err == nil
}

// waitRecord waits until the Node has a record for which done is true.
func (s *story) waitRecord(node string, done func(interruption.Record) bool) interruption.Record {
	s.Helper()
	found, err := s.cluster.WaitNode(s.ctx, node, func(n *corev1.Node) bool {
		rec, ok := record(n)
		return ok && done(rec)
	})
	rec, _ := record(found)
	if err != nil {
		s.Fatalf("node %s: %v; its record is %s", node, err, rec)
	}
	return rec
}

// waitGone waits until the Node is gone.
func (s *story) waitGone(node string) {
	s.Helper()
	_, err := s.cluster.WaitNode(s.ctx, node, func(n *corev1.Node) bool { return n == nil })
	s.must(err)
}

// watchReady follows a service until the story ends, and returns the lowest number of pods that were
// ready at any moment.
func (s *story) watchReady(service string) (fewest func() int) {
	s.Helper()
	var mu sync.Mutex
	least := -1
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Minute)
	s.Cleanup(cancel)
	first := make(chan struct{})
	var once sync.Once
	seen := func() { once.Do(func() { close(first) }) }
	go func() {
		defer seen()
		_, _ = s.cluster.WaitPods(ctx, "default", controlplane.Selector(service), func(pods []*corev1.Pod) bool {
			n := 0
			for _, p := range pods {
				if controlplane.Ready(p) {
					n++
				}
			}
			mu.Lock()
			if least < 0 || n < least {
				least = n
			}
			mu.Unlock()
			seen()
			return false
		})
	}()
	<-first
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return least
	}
}

// podsOn lists the pods of a service that are on the node and have not ended.
func (s *story) podsOn(node, service string) []corev1.Pod {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{
		LabelSelector: controlplane.Selector(service), FieldSelector: "status.phase!=Failed,status.phase!=Succeeded,spec.nodeName=" + node,
	})
	s.must(err)
	return list.Items
}

// claims lists the NodeClaims of a pool that we made for an instance; "" is any.
func (s *story) claims(pool, instance string) []string {
	s.Helper()
	selector := "karpenter.sh/nodepool=" + pool + ",spot-handler/replaces"
	if instance != "" {
		selector += "=" + instance
	}
	list, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).List(s.ctx, metav1.ListOptions{LabelSelector: selector})
	s.must(err)
	var names []string
	for _, c := range list.Items {
		names = append(names, c.GetName())
	}
	return names
}

// events returns the Events with the reason about the named object.
func (s *story) events(reason, name string) []corev1.Event {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Events("").List(s.ctx, metav1.ListOptions{
		FieldSelector: "reason=" + reason + ",involvedObject.name=" + name,
	})
	s.must(err)
	return list.Items
}

func hasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// lastSeen is the Node as it is now, or nil.
func (s *story) lastSeen(name string) *corev1.Node {
	s.Helper()
	node, err := s.cluster.WaitNode(s.ctx, name, func(*corev1.Node) bool { return true })
	s.must(err)
	return node
}
