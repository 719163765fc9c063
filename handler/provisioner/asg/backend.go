package asg

import (
	"context"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// AutoScaling is the subset of the Auto Scaling API that the backend calls. Neither this
// client nor EC2's should retry by itself: Run does, for all nodes together.
type AutoScaling interface {
	DescribeAutoScalingInstances(ctx context.Context, in *autoscaling.DescribeAutoScalingInstancesInput, opts ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingInstancesOutput, error)
	DescribeAutoScalingGroups(ctx context.Context, in *autoscaling.DescribeAutoScalingGroupsInput, opts ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingGroupsOutput, error)
	DetachInstances(ctx context.Context, in *autoscaling.DetachInstancesInput, opts ...func(*autoscaling.Options)) (*autoscaling.DetachInstancesOutput, error)
}

// Terminator is the subset of the EC2 API that the backend calls: it ends instances, all or
// none. Those that have ended are no error.
type Terminator interface {
	TerminateInstances(ctx context.Context, in *ec2.TerminateInstancesInput, opts ...func(*ec2.Options)) (*ec2.TerminateInstancesOutput, error)
}

// Nodes knows the cluster's Nodes, from memory. They are shared, and must not be changed.
type Nodes interface {
	// Get returns the Node of that name.
	Get(name string) (*corev1.Node, bool)
	// WithRecord returns the names of the Nodes that carry a record.
	WithRecord() []string
	// Joined returns the Nodes without a record that were created at since or later.
	Joined(since time.Time) []*corev1.Node
}

// Options configure a Backend.
type Options struct {
	AutoScaling AutoScaling
	EC2         Terminator
	Nodes       Nodes

	// Notify is called with the name of an interrupted node when its replacement might have
	// changed and Request is worth a call. It must not block, and can be nil.
	Notify func(node string)

	Registerer prometheus.Registerer // nil: metrics are kept and not shown
	Logger     zerolog.Logger
}

// Backend makes replacements through Auto Scaling groups.
type Backend struct {
	api     AutoScaling
	ec2     Terminator
	nodes   Nodes
	notify  func(string)
	metrics *metrics
	log     zerolog.Logger
	wake    chan struct{} // there is something to ask
	full    chan struct{} // there is enough to ask for a whole call

	denials awsfault.Denials

	mu        sync.Mutex
	entries   map[string]*entry    // by node
	baselines map[string]*baseline // by group
	members   map[string]string    // the group, or none, of instances that have joined
	given     map[string]string    // the node that an instance replaces
	requests  []*termination
}

var _ provisioner.Backend = (*Backend)(nil)

// New returns a Backend. It makes no call and starts nothing.
func New(opts Options) *Backend {
	if opts.Notify == nil {
		opts.Notify = func(string) {}
	}
	return &Backend{
		api: opts.AutoScaling, ec2: opts.EC2, nodes: opts.Nodes, notify: opts.Notify,
		metrics: newMetrics(opts.Registerer),
		log:     opts.Logger.With().Str("component", "provisioner").Str("backend", provisioner.ASG).Logger(),
		wake:    make(chan struct{}, 1),
		full:    make(chan struct{}, 1),
		entries: map[string]*entry{}, baselines: map[string]*baseline{}, members: map[string]string{}, given: map[string]string{},
	}
}

// Name implements provisioner.Backend.
func (b *Backend) Name() string { return provisioner.ASG }

// Made is always false: a Node does not say whether it is of a group.
func (b *Backend) Made(*corev1.Node) bool { return false }

// Reasons of StateUnsupported.
const (
	reasonNoInstance = "the node is no EC2 instance"
	reasonNoMoving   = "no pod needs a new home"
	reasonNoGroup    = "the instance is in no Auto Scaling group"
	reasonComesBack  = "the instance comes back, and stays in its group"
	reasonRehearsal  = "a rehearsal leaves the instance in its Auto Scaling group, as there is no way back"
	reasonEnds       = "its Auto Scaling group ends the instance by itself, and launches another where it wants one"
)

// Request says how far the node's replacement is, and has Run ask for one. It makes no
// call.
func (b *Backend) Request(_ context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (interruption.Replacement, error) {
	prev := own(rec)
	if prev != nil && !provisioner.Pending(prev.State) {
		return *prev, nil
	}
	if reason := objection(rec, need); reason != "" {
		return unsupported(reason), nil
	}
	recorded := recordedGroup(node)

	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[node.Name]
	if e == nil || e.instance != rec.Instance {
		e = newEntry(node.Name, rec, prev)
		b.entries[node.Name] = e
	}
	e.deadline = rec.DeadlineTime()
	switch {
	case e.stage == found && recorded == e.group:
		e.stage, e.intended = leaving, recorded
	case e.stage == refused && !e.again.IsZero() && time.Now().After(e.again):
		e.stage = looking
	}
	if e.stage == looking && recorded != "" {
		e.intended = recorded
	}
	b.awaken()
	return e.answer, nil
}

// Choose says which group Request would turn to. It makes one call itself, as nothing runs
// Run in a dry run.
func (b *Backend) Choose(ctx context.Context, _ *corev1.Node, rec interruption.Record, need provisioner.Need) (interruption.Replacement, error) {
	if prev := own(rec); prev != nil {
		return *prev, nil
	}
	if reason := objection(rec, need); reason != "" {
		return unsupported(reason), nil
	}
	e := newEntry("", rec, nil)
	members, err := b.describe(ctx, []string{rec.Instance})
	if reason, ok := awsfault.Hopeless(err); ok {
		return unsupported(reason), nil
	}
	if err != nil {
		return interruption.Replacement{}, err
	}
	e.locate(members[rec.Instance])
	return e.answer, nil
}

// objection is why nothing is asked of the node's group, or "". A replacement that was asked for is
// followed even if nobody would ask for it now, but for one of a rehearsal.
func objection(rec interruption.Record, need provisioner.Need) string {
	asked := own(rec) != nil
	switch {
	case !nodes.IsInstanceID(rec.Instance):
		return reasonNoInstance
	case !asked && rec.ComesBack():
		return reasonComesBack
	case !asked && len(need.Moving) == 0:
		return reasonNoMoving
	case !asked && groupEnds(rec):
		return reasonEnds
	case rec.Rehearsed() && !rec.Release:
		return reasonRehearsal
	}
	return ""
}

// groupEnds reports whether the instance's group is ending it. It can no longer be detached,
// and if the group becomes smaller there should be no replacement.
func groupEnds(rec interruption.Record) bool {
	return rec.Kind == interruption.InstanceTerminating || len(rec.Hooks) > 0
}

// own is the replacement that this backend was asked for, or nil.
func own(rec interruption.Record) *interruption.Replacement {
	return provisioner.Asked(rec, provisioner.ASG)
}

// recordedGroup is the group that the record on the Node names. What the handler has in
// memory does not count.
func recordedGroup(node *corev1.Node) string {
	rec, has, err := nodes.Record(node)
	if !has || err != nil {
		return ""
	}
	if r := own(rec); r != nil && provisioner.Pending(r.State) {
		return r.Pool
	}
	return ""
}

func unsupported(reason string) interruption.Replacement {
	return provisioner.Unsupported(provisioner.ASG, reason)
}

// awaken has Run look at what there is to ask. The caller holds mu.
func (b *Backend) awaken() {
	look, other := 0, len(b.requests)
	for _, e := range b.entries {
		switch e.stage {
		case looking:
			look++
		case leaving:
			other++
		}
	}
	if look+other > 0 {
		signal(b.wake)
	}
	if look >= describeLimit {
		signal(b.full)
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
