package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// Daemon is a pod of spot-handler.
type Daemon struct {
	Owned   // what has made it
	Account string
	// Named: an administrator or the operator has named the account. Others are not to be given
	// anything.
	Named   bool
	Release string // of the chart; empty without
	Node    string
	// Ready: it runs, and not only to say what it would do.
	Ready bool

	Fleet  bool // it drains all nodes; else it takes notices for its own node
	Queue  bool // it takes notices for all nodes
	Drains bool // it drains at all
	// Nodes are those on which it acts.
	Nodes labels.Selector
	// Permissions are what it needs.
	Permissions []Permission

	// Missing are those of Permissions that the account does not have, Unlisted says that no
	// FlowSchema names it, and Unheld that no admission policy of its release is in force. They are
	// set of the first daemon of each account.
	Missing          []Permission
	Unlisted, Unheld bool
}

// Permission is one that RBAC grants.
type Permission struct {
	Verb, Group, Resource, Namespace string
	// ToStart: it does not start without.
	ToStart bool
}

// nodesThatNobodyWatches: no pod of spot-handler is notified of their interruption, and their
// pods end with them.
func nodesThatNobodyWatches(s Snapshot) (found []Finding) {
	if s.Daemons == nil || len(s.Daemons) == 0 && slices.ContainsFunc(s.Others, Other.takesNotices) {
		return nil // not known, or somebody else does
	}
	fleet := slices.ContainsFunc(s.Daemons, func(d Daemon) bool { return d.Fleet })
	set := slices.IndexFunc(s.Daemons, func(d Daemon) bool { return !d.Queue && !d.Fleet }) // one of the DaemonSet
	unwatched, silent := map[string]*corev1.Node{}, 0
	for _, n := range s.Nodes {
		if !isSpot(n) || n.Labels[interruption.IgnoreLabel] == "true" {
			continue
		}
		known, ready := false, false
		for i := range s.Daemons {
			d := &s.Daemons[i]
			takes := d.Queue || !d.Fleet && d.Node == n.Name && (d.Drains || fleet)
			known, ready = known || takes, ready || takes && d.Ready && d.Nodes.Matches(labels.Set(n.Labels))
		}
		if ready {
			continue
		}
		unwatched[n.Name] = n
		if known {
			silent++
		}
	}
	if len(unwatched) == 0 {
		return nil
	}
	f := Finding{
		Object: "nodes", Pods: s.count(func(p *Pod) bool { return unwatched[p.Spec.NodeName] != nil }),
		What: notWatched(slices.Sorted(maps.Keys(unwatched))),
		Why:  "nobody moves their pods before EC2 reclaims them",
		Fix: "helm upgrade --install spot-handler deploy/chart --namespace spot-handler --create-namespace " +
			"--set image.repository=REGISTRY/spot-handler",
	}
	switch {
	case silent > 0:
		f.What += fmt.Sprintf(": on %d it is not ready, only says what it would do, or is set to leave them alone", silent)
		f.Fix = "kubectl get pods --all-namespaces --selector app.kubernetes.io/name=spot-handler --output wide"
	case set < 0:
	case !fleet && !s.Daemons[set].Drains:
		f.What += " that drains"
	default:
		d := s.Daemons[set]
		f.Namespace, f.Object = d.Namespace, d.Object
		f.Fix = d.fix("node affinity to these nodes too", spotValues(slices.Collect(maps.Values(unwatched)))...)
	}
	return append(found, f)
}

func notWatched(nodes []string) string {
	if len(nodes) == 1 {
		return fmt.Sprintf("the spot node %s is watched by no pod of spot-handler", nodes[0])
	}
	return fmt.Sprintf("%d spot nodes, such as %s, are watched by no pod of spot-handler", len(nodes), nodes[0])
}

// upgrade is how the chart's values change. What Helm has applied is not to be patched by others:
// its next upgrade would meet a conflict.
func (d Daemon) upgrade(sets ...string) string {
	upgrade := []string{"helm", "upgrade", d.Release, "deploy/chart", "--namespace", d.Namespace, "--reset-then-reuse-values"}
	return console.Command(append(upgrade, sets...)...)
}

// fix is how the chart's values change; without the chart, what the manifest has to have.
func (d Daemon) fix(otherwise string, sets ...string) string {
	if d.Release == "" {
		return fmt.Sprintf("in the manifest of %s: %s", d.Object, otherwise)
	}
	return d.upgrade(sets...)
}

// spotValues set the chart's values that add the labels of these nodes to those by which it knows spot
// nodes.
func spotValues(these []*corev1.Node) (sets []string) {
	for _, l := range nodes.SpotLabels {
		if slices.ContainsFunc(these, func(n *corev1.Node) bool { by, _ := nodes.Spot(n); return by == l }) {
			sets = append(sets, "--set-string", fmt.Sprintf("spotLabels.%s=%s", strings.ReplaceAll(l.Key, ".", `\.`), l.Value))
		}
	}
	return sets
}

// daemonOnSpot: who drains is drained itself, although there are other nodes to run on.
func daemonOnSpot(s Snapshot) (found []Finding) {
	if !slices.ContainsFunc(s.Nodes, func(n *corev1.Node) bool { return !isSpot(n) && !n.Spec.Unschedulable }) {
		return nil
	}
	on := map[Owned][]*corev1.Node{}
	by := map[Owned]Daemon{}
	for _, d := range s.Daemons {
		if d.Fleet && d.Node != "" {
			on[d.Owned], by[d.Owned] = append(on[d.Owned], s.node[d.Node]), d
		}
	}
	for of, nodes := range on {
		if slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return !isSpot(n) }) {
			continue
		}
		found = append(found, Finding{
			Namespace: of.Namespace, Object: of.Object, Pods: len(nodes),
			What: "drains all nodes, and runs on spot nodes only",
			Why:  "it loses its own nodes in the mass interruption it is there for",
			Fix: by[of].fix("node affinity to nodes that are not spot",
				append(spotValues(nodes), "--set", "controller.nodeSelector=null,controller.affinity=null")...),
		})
	}
	return found
}

// isSpot reports whether the node, which can be unknown, is a spot instance.
func isSpot(node *corev1.Node) bool {
	_, spot := nodes.Spot(cmp.Or(node, &corev1.Node{}))
	return spot
}
