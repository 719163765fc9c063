package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/handler/interruption"
)

// Coverage is what the checks read about who acts on notices.
type Coverage struct {
	// Daemons are the pods of spot-handler; nil if they could not be read.
	Daemons []Daemon
	// Others are other programs that act on the same notices.
	Others []Other
	// Balanced are the targets of AWS's load balancers.
	Balanced []Balanced
}

// Daemon is a pod of spot-handler.
type Daemon struct {
	Namespace string
	Owner     string // as kubectl names it, such as deployment/spot-handler-queue
	Account   string
	// Named: an administrator or the operator has named the account. Others are not to be given
	// anything.
	Named bool
	// Release and Component are what the chart has installed it as; empty without.
	Release, Component string
	Node               string
	// Ready: it runs, and not only to say what it would do.
	Ready bool

	Fleet  bool // it drains all nodes
	Queue  bool // it takes notices for all nodes
	Own    bool // it takes those for its own node
	Drains bool // it drains that too
	// Nodes are those on which it acts.
	Nodes labels.Selector
	// Rights are what it needs.
	Rights []Right

	// Missing are those of Rights that it does not have, and Unlisted says that no FlowSchema
	// names its account.
	Missing  []Right
	Unlisted bool
	// Unheld says that no admission policy of its release is in force.
	Unheld bool
}

// Right is one that RBAC grants.
type Right struct {
	Verb, Group, Resource, Namespace string
	// ToStart: it does not start without.
	ToStart bool
}

// Other is another program that acts on notices.
type Other struct {
	Namespace string
	Object    string // as kubectl names it
	Karpenter bool   // else aws-node-termination-handler
	// Variable holds Karpenter's queue; empty if an argument does.
	Variable string
}

// nodesThatNobodyWatches: nobody hears of their interruption, and their pods end with them.
func nodesThatNobodyWatches(s Snapshot) (found []Finding) {
	if s.Daemons == nil || len(s.Daemons) == 0 && len(s.Others) > 0 {
		return nil // not known, or somebody else does
	}
	fleet := slices.ContainsFunc(s.Daemons, func(d Daemon) bool { return d.Fleet })
	var set *Daemon                 // one of the DaemonSet
	watch := map[string][]*Daemon{} // by node; those of "" take notices for all
	for i := range s.Daemons {
		switch d := &s.Daemons[i]; {
		case d.Queue:
			watch[""] = append(watch[""], d)
		case d.Own:
			set = d
			if d.Drains || fleet {
				watch[d.Node] = append(watch[d.Node], d)
			}
		}
	}
	unwatched, by, silent := map[string]bool{}, map[[2]string]bool{}, 0
	for _, n := range s.Nodes {
		spot := spotBy(n)
		if spot == nil || n.Labels[interruption.IgnoreLabel] == "true" {
			continue
		}
		theirs := slices.Concat(watch[n.Name], watch[""])
		if slices.ContainsFunc(theirs, func(d *Daemon) bool { return d.Ready && d.Nodes.Matches(labels.Set(n.Labels)) }) {
			continue
		}
		unwatched[n.Name], by[*spot] = true, true
		if len(theirs) > 0 {
			silent++
		}
	}
	if len(unwatched) == 0 {
		return nil
	}
	f := Finding{
		Object: "nodes", Pods: s.count(func(p Pod) bool { return unwatched[p.Node] }),
		What: notWatched(slices.Sorted(maps.Keys(unwatched))),
		Why:  "nobody moves their pods before EC2 ends them",
		Fix:  "helm upgrade --install spot-handler deploy/chart --namespace spot-handler --create-namespace",
	}
	switch {
	case silent > 0:
		f.What += fmt.Sprintf(": on %d it is not ready, only says what it would do, or is told to leave them alone", silent)
		f.Fix = "kubectl get pods --all-namespaces --selector app.kubernetes.io/name=spot-handler --output wide"
	case set != nil && !fleet && !set.Drains:
		f.What += " that drains"
	case set != nil:
		f.Namespace, f.Object = set.Namespace, set.Owner
		var ops, sets []string
		for _, l := range spotLabels {
			if by[l] {
				sets = append(sets, "--set-string", spotLabel(l))
				ops = append(ops, fmt.Sprintf(`{"op":"add","path":"/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/-","value":{"matchExpressions":[{"key":%q,"operator":"In","values":[%q]}]}}`, l[0], l[1]))
			}
		}
		if f.Fix = set.upgrade(sets...); set.Release == "" {
			f.Fix = Owned{set.Namespace, set.Owner}.kubectl("patch", "--type=json", "-p", "["+strings.Join(ops, ",")+"]")
		}
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
	return console.Command(append([]string{"helm", "upgrade", d.Release, "deploy/chart", "--namespace", d.Namespace, "--reset-then-reuse-values"}, sets...)...)
}

// spotLabel is the chart's value that adds a label to those by which it knows spot nodes.
func spotLabel(l [2]string) string {
	return fmt.Sprintf("spotLabels.%s=%s", strings.ReplaceAll(l[0], ".", `\.`), l[1])
}

// karpentersOwnQueue: Karpenter acts on the same notices, its own way.
func karpentersOwnQueue(s Snapshot) (found []Finding) {
	for _, o := range s.Others {
		if !o.Karpenter || len(s.Daemons) == 0 {
			continue
		}
		f := Finding{
			Namespace: o.Namespace, Object: o.Object,
			What: "has an interruption queue of its own",
			Why:  "it deletes interrupted nodes itself, without regard to the two minutes, and buys spot again: which of both comes first is chance",
			Fix:  fmt.Sprintf("in the manifest of %s: no --interruption-queue", o.Object),
		}
		if o.Variable != "" {
			f.Fix = console.Command("kubectl", "-n", o.Namespace, "set", "env", o.Object, o.Variable+"-")
		}
		found = append(found, f)
	}
	return found
}

// anotherHandler: two handlers on one cluster drain every node twice.
func anotherHandler(s Snapshot) (found []Finding) {
	for _, o := range s.Others {
		if o.Karpenter || len(s.Daemons) == 0 {
			continue
		}
		found = append(found, Finding{
			Namespace: o.Namespace, Object: o.Object,
			What: "is aws-node-termination-handler, beside spot-handler",
			Why:  "it evicts all pods at once on the same notice: none waits for its successor or for a replacement",
			Fix:  Owned{o.Namespace, o.Object}.kubectl("delete"),
		})
	}
	return found
}
