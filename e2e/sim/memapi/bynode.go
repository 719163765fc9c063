package memapi

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Pods are found by their node without a look at all the others, as the real server finds them. So are the
// watches that a pod's change is about. Otherwise the work for each interrupted node grows with their number.

// PodsOn returns a node's pods, sorted by key; with an empty name, those without a node. They must not be changed.
func PodsOn(s *Server, node string) []*corev1.Pod {
	c := s.of(Pods)
	list := make([]*corev1.Pod, 0, len(c.onNode[node]))
	for _, key := range c.onNode[node] {
		if pod, ok := c.objects[key].obj.(*corev1.Pod); ok {
			list = append(list, pod)
		}
	}
	return list
}

func with(keys []string, key string) []string {
	at, _ := slices.BinarySearch(keys, key)
	return slices.Insert(keys, at, key)
}

func without(keys []string, key string) []string {
	at, _ := slices.BinarySearch(keys, key)
	return slices.Delete(keys, at, at+1)
}

// node is the node that the object runs on; empty if it isn't a pod, or has none.
func (s *stored) node() string {
	if s != nil {
		if pod, ok := s.obj.(*corev1.Pod); ok {
			return pod.Spec.NodeName
		}
	}
	return ""
}

// index keeps onNode in step with the objects.
func (c *collection) index(key string, before, after *stored) {
	was, is := before.node(), after.node()
	if c.Kind != Pods || before != nil && after != nil && was == is {
		return
	}
	if before != nil {
		if c.onNode[was] = without(c.onNode[was], key); len(c.onNode[was]) == 0 {
			delete(c.onNode, was)
		}
	}
	if after != nil {
		c.onNode[is] = with(c.onNode[is], key)
	}
}

// tell passes a change to the watches that it can concern.
func (c *collection) tell(e *event) {
	was, is := e.before.node(), e.after.node()
	for w := range c.watches[""] {
		w.add(e)
	}
	if was != "" {
		for w := range c.watches[was] {
			w.add(e)
		}
	}
	if is != "" && is != was {
		for w := range c.watches[is] {
			w.add(e)
		}
	}
}

// among narrows the keys to those whose objects can match the selection.
func (s *Server) among(c *collection, sel selection, keys []string, version int64) []string {
	if sel.node != "" && version == s.version { // older versions have no index
		return c.onNode[sel.node]
	}
	return keys
}
