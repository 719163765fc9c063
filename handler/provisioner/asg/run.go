package asg

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	smithytime "github.com/aws/smithy-go/time"
	"github.com/cenkalti/backoff/v5"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

const (
	// gather is how long the first of a burst waits for the others, to share its calls. That
	// is nothing to the minute in which a replacement boots.
	gather = 150 * time.Millisecond

	// watch is how often the Nodes, which are in memory, are searched for replacements while
	// any are expected.
	watch = 500 * time.Millisecond

	// longestPause is the longest wait after a failed call, give or take half. The nodes of
	// other groups wait too, and they have two minutes in all.
	longestPause = 2 * time.Second
)

// pauses are those between failed calls.
func pauses() *backoff.ExponentialBackOff {
	return awsfault.Pauses(200*time.Millisecond, longestPause, 0.5)
}

// Run asks Auto Scaling for all nodes together until ctx is done, and returns nil then.
// While no node is waited for, it is idle. It may be called once.
func (b *Backend) Run(ctx context.Context) error {
	again := pauses()
	timer := time.NewTimer(watch)
	timer.Stop() // nobody is waited for yet
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-b.wake:
			if smithytime.SleepWithContext(ctx, gather) != nil {
				return nil
			}
		}
		err := b.step(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			wait := again.NextBackOff()
			b.log.Warn().Err(err).Float64("retry_seconds", wait.Seconds()).Msg("ask Auto Scaling")
			if smithytime.SleepWithContext(ctx, wait) != nil {
				return nil
			}
			b.awaken()
			continue
		}
		again.Reset()
		if b.waiting() {
			timer.Reset(watch)
		}
	}
}

// step does what can be done now. What fails does not hold up the rest. Nodes whose group
// has just been found wait for the next step, to leave it together.
func (b *Backend) step(ctx context.Context) error {
	b.prune()
	return errors.Join(b.leave(ctx), b.find(ctx), b.match(ctx), b.terminate(ctx))
}

// prune forgets nodes whose interruption is over.
func (b *Backend) prune() {
	b.mu.Lock()
	defer b.mu.Unlock()
	open := map[string]bool{}
	for name, e := range b.entries {
		if b.over(e) {
			delete(b.entries, name)
			continue
		}
		if e.stage != ready && e.stage != refused {
			open[e.group] = true
		}
	}
	for group := range b.baselines {
		if !open[group] {
			delete(b.baselines, group)
		}
	}
	if len(open) == 0 { // later nodes are replaced by Nodes that join later
		clear(b.members)
		clear(b.given)
	}
}

func (b *Backend) over(e *entry) bool {
	node, ok := b.opts.Nodes.Get(e.node)
	if !ok {
		return true
	}
	rec, err := nodes.Record(node)
	return err != nil || rec.Instance != e.instance || rec.Phase.Over()
}

// waiting reports whether to search the Nodes again.
func (b *Backend) waiting() bool { return len(b.in(detached))+len(b.in(found)) > 0 }

// in returns the nodes of a stage, most urgent first.
func (b *Backend) in(s stage) []*entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []*entry
	for _, e := range b.entries {
		if e.stage == s {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, sooner)
	return list
}

// whole cuts a list to full calls, if it is enough for one. The rest has its turn a moment
// later, together with what comes until then.
func (b *Backend) whole(list []*entry, limit int) []*entry {
	rest := len(list) % limit
	if rest == 0 || rest == len(list) {
		return list
	}
	b.awaken()
	return list[:len(list)-rest]
}

// change changes nodes with f and notifies of them. A node that is no longer in the stage,
// as it was forgotten meanwhile, stays as it is.
func (b *Backend) change(list []*entry, s stage, f func(*entry)) {
	var names []string
	b.mu.Lock()
	for _, e := range list {
		if b.entries[e.node] == e && e.stage == s {
			f(e)
			names = append(names, e.node)
		}
	}
	b.mu.Unlock()
	if b.opts.Notify == nil {
		return // Request waits
	}
	for _, name := range names {
		b.opts.Notify(name)
	}
}

// stage is how far a node is.
type stage int

const (
	unlocated stage = iota // its group is not known yet
	found                  // it has a group, which the record on the Node does not name yet
	leaving                // ready to be detached
	detached               // it has left, or is leaving: a replacement will come
	ready                  // the replacement is there
	refused                // there will be none
)

// entry is one interrupted node.
type entry struct {
	node, instance string
	since          time.Time // what joins the group from then on might be for it, in whole seconds
	begun          time.Time // when its turn came, if it had to wait for that
	deadline       time.Time // zero: none
	asked          time.Time // when this process was first asked

	stage    stage
	group    string
	intended string    // the group that the record on the Node names
	again    time.Time // when to look again after a refusal; zero: never
	answer   interruption.Replacement
}

// newEntry is how a process begins with a node: prev is what the record names.
func newEntry(node string, rec interruption.Record, prev *interruption.Replacement) *entry {
	since := interruption.Earlier(rec.Received, rec.Begun)
	e := &entry{
		node:     node,
		instance: rec.Instance,
		since:    since.Truncate(time.Second), // the API server keeps whole seconds
		begun:    rec.Begun,
		deadline: rec.Deadline,
		asked:    time.Now(),
	}
	e.answer = interruption.Replacement{Backend: provisioner.ASG, State: provisioner.StateRequested}
	if prev != nil {
		e.answer, e.group = *prev, prev.Pool
		if prev.State == provisioner.StateLaunched {
			e.stage, e.answer.Detached = detached, true
		}
	}
	return e
}

// locate says what follows from where the instance is; a nil member is in no group.
func (e *entry) locate(member *types.AutoScalingInstanceDetails) {
	if member == nil {
		if e.intended == "" {
			e.refuse(provisioner.StateUnsupported, reasonNoGroup)
			e.again = time.Time{} // it does not go back by itself
			return
		}
		e.departed(e.intended) // by us, or it has ended: the group replaces it either way
		return
	}
	group, state := aws.ToString(member.AutoScalingGroupName), aws.ToString(member.LifecycleState)
	switch {
	case state == string(types.LifecycleStateInService):
		e.group, e.stage = group, found
		e.answer = interruption.Replacement{Backend: provisioner.ASG, Name: group, Pool: group, State: provisioner.StateRequested}
		if e.intended == group {
			e.stage = leaving
		}
	case isLeaving(state):
		e.departed(group)
	default:
		// A group does not count an instance in Standby, and would launch none for it. One
		// that is Pending or in a warm pool cannot be detached.
		e.refuse(provisioner.StateUnsupported, "the instance is "+state+" in Auto Scaling group "+group)
	}
}

// isLeaving reports whether an instance in the state can no longer be detached, as it is
// being detached or ended.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html
func isLeaving(state string) bool {
	return strings.HasPrefix(state, "Detach") || strings.HasPrefix(state, "Terminat")
}

// isWarm reports whether an instance in the state is in its group's warm pool: it boots, its
// Node might even be Ready, and it is stopped again.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/warm-pool-instance-lifecycle.html
func isWarm(state string) bool { return strings.HasPrefix(state, "Warmed:") }

func (e *entry) departed(group string) {
	e.stage, e.group = detached, group
	e.answer = interruption.Replacement{
		Backend:  provisioner.ASG,
		Name:     group,
		Pool:     group,
		State:    provisioner.StateLaunched,
		Detached: true,
	}
}

// refusedFor is how long a refusal stands before it is tried again.
const refusedFor = time.Minute

// refuse answers that there is no replacement. Unsupported is tried again after a while;
// Failed is final.
func (e *entry) refuse(state, reason string) {
	e.stage, e.again = refused, time.Now().Add(refusedFor)
	e.answer = interruption.Replacement{Backend: provisioner.ASG, State: state, Reason: reason}
	if state == provisioner.StateFailed {
		e.answer.Name, e.answer.Pool, e.again = e.group, e.group, time.Time{}
	}
}

// sooner orders nodes by who needs its replacement first.
func sooner(a, b *entry) int {
	return cmp.Or(interruption.CompareDeadlines(a.deadline, b.deadline), a.since.Compare(b.since), cmp.Compare(a.node, b.node))
}
