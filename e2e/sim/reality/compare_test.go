package reality

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"spot-handler/e2e/sim"
)

// near is how far two times may be apart, and be the same.
const near = 3 * time.Second

// tally compares what became of scenes.
type tally struct {
	pods, sameEnd   int
	times, sameTime int // of pods that end alike: when they are asked to, and when they are gone
	nodes, sameNode int
	notes           []string
}

func (t *tally) add(of tally) {
	t.pods, t.sameEnd = t.pods+of.pods, t.sameEnd+of.sameEnd
	t.times, t.sameTime = t.times+of.times, t.sameTime+of.sameTime
	t.nodes, t.sameNode = t.nodes+of.nodes, t.sameNode+of.sameNode
	t.notes = append(t.notes, of.notes...)
}

func (t *tally) String() string {
	return fmt.Sprintf("pods %d, end alike %d (%.2f%%); times %d, alike %d (%.2f%%); nodes %d, alike %d (%.2f%%)",
		t.pods, t.sameEnd, percent(t.sameEnd, t.pods), t.times, t.sameTime, percent(t.sameTime, t.times),
		t.nodes, t.sameNode, percent(t.sameNode, t.nodes))
}

// alike reports whether enough is.
func (t *tally) alike() bool {
	return t.pods > 0 && percent(t.sameEnd, t.pods) >= endsAlike && percent(t.sameTime, t.times) >= timesAlike &&
		percent(t.sameNode, t.nodes) >= nodesAlike
}

func percent(part, of int) float64 { return 100 * float64(part) / float64(max(1, of)) }

// group is what becomes of the pods of a workload on a node, which stand for each other.
type group struct{ workload, node string }

// compare compares what was with what the simulator says: the pods on nodes that are lost, and those nodes.
func compare(scene sim.Scene, was, said sim.Fates) (t tally) {
	lost := map[string]bool{}
	for _, l := range scene.Losses {
		lost[l.Node] = true
	}
	groups := map[group][2][]sim.PodFate{}
	for side, fates := range []sim.Fates{was, said} {
		for _, p := range fates.Pods {
			key := group{p.Workload, p.Node}
			both := groups[key]
			both[side] = append(both[side], p)
			groups[key] = both
		}
	}
	for key, both := range groups {
		if lost[key.node] {
			t.comparePods(both[0], both[1], ends(scene))
		}
	}
	for i, n := range was.Nodes {
		if lost[n.Node] {
			t.compareNodes(n, said.Nodes[i])
		}
	}
	slices.Sort(t.notes)
	return t
}

func (t *tally) comparePods(was, said []sim.PodFate, until time.Duration) {
	t.pods += len(was)
	byTime := func(a, b sim.PodFate) int { return cmp.Or(cmp.Compare(a.Asked, b.Asked), cmp.Compare(a.Gone, b.Gone)) }
	slices.SortFunc(was, byTime)
	left := slices.SortedFunc(slices.Values(said), byTime)
	off := false
	for _, p := range was {
		at := slices.IndexFunc(left, func(q sim.PodFate) bool { return q.End == p.End })
		if at < 0 {
			off = true
			continue
		}
		t.sameEnd++
		for _, pair := range [][2]time.Duration{{p.Asked, left[at].Asked}, {p.Gone, left[at].Gone}} {
			if pair == [2]time.Duration{} {
				continue
			}
			t.times++
			// What has not happened by the end of the round may happen a moment later.
			if alike(cmp.Or(pair[0], until), cmp.Or(pair[1], until)) {
				t.sameTime++
			} else {
				off = true
			}
		}
		left = slices.Delete(left, at, at+1)
	}
	if off {
		t.notes = append(t.notes, fmt.Sprintf("pods of %s on %s:\n    was  %s\n    said %s", was[0].Workload, was[0].Node, say(was), say(said)))
	}
}

// alike: both have happened at about the same time, or neither has.
func alike(a, b time.Duration) bool { return (a == 0) == (b == 0) && max(a-b, b-a) <= near }

func (t *tally) compareNodes(was, said sim.NodeFate) {
	t.nodes++
	if was.Phase == said.Phase && was.Pods == said.Pods && alike(was.Recorded, said.Recorded) &&
		alike(was.Cordoned, said.Cordoned) && alike(was.Over, said.Over) {
		t.sameNode++
		return
	}
	t.notes = append(t.notes, fmt.Sprintf("node %s:\n    was  %s\n    said %s", was.Node, sayNode(was), sayNode(said)))
}

func say(pods []sim.PodFate) string {
	var list []string
	for _, p := range pods {
		list = append(list, fmt.Sprintf("%s %.1f..%.1f (%d s)", p.End, p.Asked.Seconds(), p.Gone.Seconds(), p.Grace))
	}
	return strings.Join(list, "; ")
}

func sayNode(n sim.NodeFate) string {
	return fmt.Sprintf("%s, recorded %.1f, cordoned %.1f, over %.1f, pods %+v", n.Phase, n.Recorded.Seconds(), n.Cordoned.Seconds(), n.Over.Seconds(), n.Pods)
}
