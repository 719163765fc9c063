// Package asg replaces interrupted nodes through their Auto Scaling groups: it takes
// the instance out of its group without making the group smaller, and the group
// launches another.
//
//	                                 the record on the
//	           group is found         Node names it        detached               a new node is Ready
//	Requested ───────────────► Requested ───────► (detach) ────────► Launched ───────────────────► Ready
//	   │       Name: the group                        │              Name: the group               Name: its instance
//	   ▼                                              ▼
//	Unsupported: no group, no permission, ...       Failed
//
// Of the methods of [Backend] only Terminate makes a call while its caller waits.
// [Backend.Run] gathers for a moment what there is to ask, and asks for many nodes at once:
// a burst of 200 nodes of one group is some 15 calls.
//
// # Once, and no more
//
// An instance can leave a group only once: Auto Scaling refuses the second time. So no group
// ever launches more than one replacement for a node, whatever is asked again. What a
// restart could lose is the knowledge that it was us. So nothing is detached before the
// record on the Node names the group. From then on an instance that is in no group, or is
// leaving it, has been detached, whether or not the process that did so lived to record it.
// That is also the condition for the one thing here that destroys: the instance of a node
// with no more than a rebalance recommendation, or of a rehearsal that terminates its node, is
// terminated when it is drained and in no group. EC2 ends all others by itself.
//
// An instance that has left does not come back, so no other rehearsal detaches any.
//
// # Which replacement
//
// The replacements of one group are interchangeable. A Node that is Ready counts as one if its
// instance is in the group, if it replaces no other node, and if the group launched it since the
// notice, or ahead of that: with Capacity Rebalancing a group launches the replacement on the rebalance
// recommendation, on top of its desired capacity, and nothing when the instance leaves. So the newest
// of what it has in excess are replacements, too. The node with the nearest deadline gets the first.
// What has been given out stands in the records, so a later process does not give it out again. If a node's
// interruption is cancelled, its replacement is free again.
//
// An instance without a deadline is not waited for without end: if its group has given nothing within
// launchPatience, the replacement has failed, and the node is drained without one.
//
// # Failures
//
// After throttling and failures of the service it tries again, with backoff, until the node
// is gone. A missing permission is reported once, and tried again every minute while nodes
// need it; those nodes are Unsupported. Where one instance makes a whole call invalid, the
// call is split.
//
// All methods are safe for concurrent use.
package asg

import (
	"context"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
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
	// Terminate is EC2's: it ends instances, all or none. Those that have ended are no error.
	Terminate func(ctx context.Context, in *ec2.TerminateInstancesInput, opts ...func(*ec2.Options)) (*ec2.TerminateInstancesOutput, error)
	Nodes     Nodes

	// Notify is called with the name of an interrupted node when its replacement might have
	// changed and Request is worth a call. It must not block. If it is nil, Request itself asks
	// for the group and waits for the answer, as in a dry run, in which nothing runs Run.
	Notify func(node string)

	Logger zerolog.Logger
}

// Backend makes replacements through Auto Scaling groups.
type Backend struct {
	opts    Options
	denials awsfault.Denials
	log     zerolog.Logger
	wake    chan struct{} // there is something to ask

	mu        sync.Mutex
	entries   map[string]*entry    // by node
	baselines map[string]*baseline // by group
	members   map[string]string    // the group, or none, of instances that have joined
	given     map[string]replaced  // what each instance replaces
	requests  []*termination
}

// replaced is a node that was given a replacement. Node names are reused, so its own instance identifies it, too.
type replaced struct{ node, instance string }

var _ provisioner.Backend = (*Backend)(nil)

// New returns a Backend. It makes no call and starts nothing.
func New(opts Options) *Backend {
	return &Backend{
		opts:    opts,
		log:     opts.Logger.With().Str("component", "provisioner").Str("backend", provisioner.ASG).Logger(),
		wake:    make(chan struct{}, 1),
		entries: map[string]*entry{}, baselines: map[string]*baseline{}, members: map[string]string{}, given: map[string]replaced{},
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
// call unless Options.Notify is nil.
func (b *Backend) Request(
	ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need,
) (interruption.Replacement, error) {
	prev := provisioner.Asked(rec, provisioner.ASG)
	if prev != nil && !provisioner.Pending(prev.State) {
		return *prev, nil
	}
	if reason := objection(rec, need); reason != "" {
		return unsupported(reason), nil
	}
	e := b.update(node, rec, prev)
	if b.opts.Notify == nil {
		if err := b.find(ctx); err != nil {
			return interruption.Replacement{}, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return e.answer, nil
}

// update brings the node's entry up to date with its record, and wakes Run if there is something to ask.
func (b *Backend) update(node *corev1.Node, rec interruption.Record, prev *interruption.Replacement) *entry {
	recorded := "" // the group that the record names
	if r := recordedOn(node); r != nil && provisioner.Pending(r.State) {
		recorded = r.Pool
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[node.Name]
	if e == nil || e.instance != rec.Instance {
		e = newEntry(node.Name, rec, prev)
		b.entries[node.Name] = e
		b.awaken() // also to search the Nodes for a replacement that an earlier process has requested
	}
	e.deadline, e.begun = rec.Deadline, rec.Begun
	switch {
	case e.stage == found && recorded == e.group:
		e.stage, e.intended = leaving, recorded
	case e.stage == refused && !e.again.IsZero() && time.Now().After(e.again):
		e.stage, e.intended = unlocated, "" // the refusal has been recorded since
	case e.stage == refused && recorded != "" && e.answer.Reason == reasonNoGroup:
		e.stage = unlocated // it had been in a group: an earlier process detached it, and our watch lagged
	}
	if e.stage == unlocated && recorded != "" {
		e.intended = recorded
	}
	if e.stage == unlocated || e.stage == leaving {
		b.awaken()
	}
	return e
}

// objection is why nothing is asked of the node's group, or "". A replacement that was asked for is
// followed even if nobody would ask for it now, but for one of a rehearsal.
func objection(rec interruption.Record, need provisioner.Need) string {
	asked := provisioner.Asked(rec, provisioner.ASG) != nil
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

func unsupported(reason string) interruption.Replacement {
	return provisioner.Unsupported(provisioner.ASG, reason)
}

// awaken has Run make the calls that are due.
func (b *Backend) awaken() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// The calls, as they stand in the IAM actions' names and in the metric's label.
const (
	describeInstances = "DescribeAutoScalingInstances"
	describeGroups    = "DescribeAutoScalingGroups"
	detachInstances   = "DetachInstances"
	terminate         = "TerminateInstances"
)

// callTimeout bounds one call: the service answers within a second or two.
const callTimeout = 10 * time.Second

// A caller makes one call: [Backend.call] or [Backend.insist].
type caller func(ctx context.Context, service, action string, do func(context.Context) error) error

// call is insist, but does not repeat a call that was hopeless a moment ago, such as one that was not
// allowed. It is for what is tried again anyway.
func (b *Backend) call(ctx context.Context, service, action string, do func(context.Context) error) error {
	if err := b.denials.Standing(service+":"+action, refusedFor); err != nil {
		return err
	}
	return b.insist(ctx, service, action, do)
}

// insist makes one call within callTimeout.
func (b *Backend) insist(ctx context.Context, service, action string, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := awsfault.Classify(service, action, do(bounded))
	if reason, news := b.denials.Note(service+":"+action, err); news {
		b.log.Warn().Err(err).Str("reason", reason).Msg("no replacement through Auto Scaling groups")
	}
	return err
}

// invalid reports whether the service would refuse the call again.
func invalid(err error) bool { return awsfault.Of(err) == awsfault.Refused }
