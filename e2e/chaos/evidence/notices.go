package evidence

import (
	"fmt"
	"slices"
	"time"
)

// Syncs is how long a process that has started takes to know all Nodes.
const Syncs = 3 * time.Second

// noticedLate is how long after all works again a pod can have to wait for its notice: receivers
// that hang hold a place for some seconds each.
const noticedLate = 10 * time.Second

// endedElsewhere: whatever gangs and budgets say, only nodes at risk lose pods.
func endedElsewhere(r Round) (broken []string) {
	for _, p := range r.Elsewhere {
		for _, q := range r.Requests {
			if q.ours() && q.endsPod() && q.UID == p.UID && q.succeeded() {
				broken = append(broken, fmt.Sprintf("pod %s/%s on %s: %s %s at %s", p.Namespace, p.Name, p.Node, q.Verb, q.Subresource, clock(q.At)))
			}
		}
	}
	return broken
}

// notified: a pod that asks is notified before it is evicted, if nothing was broken
// for long enough before.
func notified(r Round) (broken []string) {
	for _, l := range r.Losses {
		deadline, announced := l.deadline()
		if deadline.IsZero() {
			continue
		}
		for _, p := range r.Pods {
			end, found := r.endOf(p)
			if p.Node != l.Node || !p.Asks || !found || !end.ours() {
				continue
			}
			able := r.recorded(l, announced)
			if p.Bound.After(able) {
				able = p.Bound
			}
			for _, s := range r.Spans {
				if s.From.Before(end.At) && s.To.After(able) {
					able = s.To
				}
			}
			if !able.Add(recovery + noticedLate).Before(end.At) {
				continue
			}
			heard := slices.ContainsFunc(r.Notices, func(n Notice) bool {
				return n.Namespace == p.Namespace && n.Name == p.Name && n.Node == p.Node && n.At.Before(end.At)
			})
			if !heard {
				broken = append(broken, fmt.Sprintf("pod %s/%s on %s was evicted at %s and had not been notified, able since %s", p.Namespace, p.Name, p.Node, clock(end.At), clock(able)))
			}
		}
	}
	return broken
}

// notifiedInVain: a notice goes to pods of the node that it is about.
func notifiedInVain(r Round) (broken []string) {
	pods := map[string][]Pod{}
	for _, p := range slices.Concat(r.Pods, r.Elsewhere) {
		pods[p.Namespace+"/"+p.Name] = append(pods[p.Namespace+"/"+p.Name], p)
	}
	for _, n := range r.Notices {
		known := pods[n.Namespace+"/"+n.Name]
		if len(known) == 0 {
			continue // of an earlier round
		}
		lost := slices.ContainsFunc(r.Losses, func(l Loss) bool { return l.Node == n.Node })
		concerned := slices.ContainsFunc(known, func(p Pod) bool { return p.Asks && p.Node == n.Node })
		if !lost || !concerned {
			broken = append(broken, fmt.Sprintf("%s of node %s went to pod %s/%s on %s at %s", n.Type, n.Node, n.Namespace, n.Name, known[0].Node, clock(n.At)))
		}
	}
	return broken
}
