package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/asg"
	"spot-handler/handler/provisioner/karpenter"
	"spot-handler/handler/provisioner/placeholder"
	"spot-handler/handler/provisioner/room"
)

// doom is a lost node as it is once it carries its record.
type doom struct {
	before, node *corev1.Node
	record       interruption.Record
	// nothing is why spot-handler would do nothing; empty otherwise.
	nothing string
}

// asker is what asks for replacements, with the settings of the daemon.
type asker struct {
	plan.Planner
	rules nodes.RulesFunc
	dooms map[string]*doom // by node
	taken *offerings.Memory

	// What a trial needs; nil without one.
	trial *plan.Trial
	dry   *caller // whose requests change nothing
}

// ask returns what asks for replacements with these settings. With try it asks the API server for dry
// runs, as the person who runs the command; otherwise nothing but reads leave it.
func (c *caller) ask(cfg config, try bool) (*asker, error) {
	conf, allow := rest.CopyConfig(c.conf), plan.ReadOnly
	if try {
		allow = plan.DryRun
	}
	conf.Wrap(allow)
	dry, err := newCaller(conf)
	if err != nil {
		return nil, err
	}
	if !try {
		return dry.newAsker(cfg, &plan.Notes{}), nil
	}
	t := &plan.Trial{}
	a := dry.newAsker(cfg, &plan.Notes{Send: true, Answered: t.Requested})
	a.trial, a.dry = t, dry
	return a, nil
}

// try sends what moves the pods of the lost nodes. The replacements have been tried.
func (a *asker) try(ctx context.Context, first map[string][]drain.Decision) error {
	for node, decisions := range first {
		if a.dooms[node].nothing != "" {
			continue
		}
		if err := a.trial.Drain(ctx, a.dry.core, decisions, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// newAsker asks over the caller's clients, which notes takes down.
func (c *caller) newAsker(cfg config, notes *plan.Notes) *asker {
	a := &asker{dooms: map[string]*doom{}, taken: offerings.New()}
	quiet := zerolog.Nop()
	pools := karpenter.New(karpenter.Options{
		FallbackNodePools: cfg.fallback, RebalanceCapacity: cfg.rebalanceCapacity, Offerings: a.taken,
		Dynamic: notes.Dynamic(c.seen.dynamic), Nodes: c.nodes, Pods: c.podsIn(metav1.NamespaceAll), Logger: quiet,
	})
	backends := []provisioner.Backend{pools}
	if cfg.mode == modeQueue {
		backends = append(backends, asg.New(asg.Options{Logger: quiet})) // which asks AWS only while it runs
	}
	backends = append(backends, placeholder.New(placeholder.Options{
		Selector: cfg.selector, Namespace: cfg.placeholderNamespace, Image: cfg.placeholderImage, Node: a.node,
		Pods: notes.Pods(c.podsIn(cfg.placeholderNamespace)), Templates: notes.Templates(c.podTemplates(cfg.placeholderNamespace)), Logger: quiet,
	}))
	options := provisioner.Options{Choice: cfg.provisioner, Backends: backends, Logger: quiet}
	if cfg.replacement == replacementWhenNeeded {
		options.Room = room.New(room.Options{Pods: cluster.Pods{Lister: cluster.Lister{Client: c.core}}, Nodes: c.nodes, Node: a.node})
	}
	a.rules = rulesOf(cfg, backends)
	a.Planner = plan.Planner{Asker: provisioner.New(options), Weigher: pools, Notes: notes}
	return a
}

// node is a Node as it is when all lost nodes carry their records; others are not known.
func (a *asker) node(name string) (*corev1.Node, bool) {
	if d := a.dooms[name]; d != nil {
		return d.node, true
	}
	return nil, false
}

// doom judges the notices of the lost nodes.
func (a *asker) doom(lost []plan.Lost, now time.Time) {
	for _, l := range lost {
		if l.Underway {
			continue
		}
		n := interruption.Notice{
			Kind: l.Kind, Source: interruption.Queue, EventID: "plan", InstanceID: nodes.InstanceID(l.Node),
			Noticed: now, Received: now, Action: interruption.ActionTerminate,
		}
		if l.Deadline != nil {
			n.Deadline = now.Add(*l.Deadline)
		}
		j := interruption.Judge(nodes.Case(l.Node, n, a.rules, now))
		d := &doom{before: l.Node, node: l.Node, record: j.Record}
		if j.Verdict != interruption.Accepted {
			d.nothing = cmp.Or(j.Reason, string(j.Verdict))
		} else {
			d.node = l.Node.DeepCopy()
			metav1.SetMetaDataAnnotation(&d.node.ObjectMeta, interruption.Annotation, j.Record.String())
			d.node.Spec.Unschedulable = true
			a.taken.Note(l.Node, j.Record)
		}
		a.dooms[l.Node.Name] = d
	}
}

// replace asks for the replacement of every lost node, and has the forecast know.
func (a *asker) replace(ctx context.Context, in *plan.Input) (first map[string][]drain.Decision) {
	a.doom(in.Lost, in.At)
	first = plan.First(*in)
	for i := range in.Lost {
		l := &in.Lost[i]
		if l.Underway {
			continue
		}
		l.Capacity, l.Replacement, l.Becomes = drain.NoCapacity, nil, nil
		d, need := a.dooms[l.Node.Name], provisioner.Need{Surged: map[types.UID]bool{}}
		if d.nothing != "" {
			l.Replacement = &plan.Replacement{State: provisioner.StateUnsupported, Why: d.nothing}
			continue
		}
		for _, decision := range first[l.Node.Name] {
			switch {
			case decision.Moves():
				need.Moving = append(need.Moving, decision.Pod)
				need.Surged[decision.Pod.UID] = decision.Surge
			case drain.IsDaemon(decision.Pod):
				need.Daemons = append(need.Daemons, decision.Pod)
			}
		}
		planned, unread, err := a.For(ctx, l.Node, d.record, need)
		if unread != "" {
			in.Unread = append(in.Unread, unread)
		}
		if err != nil {
			in.Unread = append(in.Unread, err.Error())
			continue
		}
		l.Capacity, l.Replacement, l.Becomes = planned.Capacity, &planned.Replacement, planned.Becomes
	}
	return first
}

// boot is how long the replacements take by the history of their pools, if these have one.
func (c *caller) boot(ctx context.Context, in *plan.Input) {
	var pools, own []string
	note := func(list *[]string, pool string) {
		if pool != "" && !slices.Contains(*list, pool) {
			*list = append(*list, pool)
		}
	}
	for _, l := range in.Lost {
		if r := l.Replacement; r != nil && r.Backend == provisioner.Karpenter && l.Capacity == drain.PendingCapacity {
			note(&pools, r.Pool)
			note(&own, nodes.PoolOf(l.Node).Name)
		}
	}
	if len(pools) == 0 {
		return
	}
	read := func(ctx context.Context, pool string) ([]time.Duration, error) {
		return karpenter.BootTimes(ctx, c.dynamic, pool)
	}
	switch boot, ok, err := plan.Boot(ctx, read, pools, own); {
	case err != nil:
		in.Unread = append(in.Unread, err.Error())
	case ok:
		in.Assumptions.Boot = boot
	}
}
