package asg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

const (
	// detachLimit is how many instances one call can detach.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DetachInstances.html
	detachLimit = 20

	// groupsAtOnce is how many groups are called at the same time. There is one call for a
	// group at a time: it would refuse a second as contention.
	groupsAtOnce = 4

	// strikes is how many instances in a row have to be refused, each asked for alone, before
	// the group counts as the cause.
	strikes = 3
)

// leave detaches the instances that should leave their groups.
func (b *Backend) leave(ctx context.Context) error {
	byGroup := map[string][]*entry{}
	late := false
	for _, e := range b.in(leaving) {
		byGroup[e.group] = append(byGroup[e.group], e)
		late = late || time.Since(e.asked) >= patience
	}
	if len(byGroup) == 0 {
		return nil
	}
	if err := b.inspect(ctx, slices.Sorted(maps.Keys(byGroup))); err != nil {
		if !late {
			return err
		}
		b.goWithoutBaselines(byGroup)
	}
	var g errgroup.Group
	g.SetLimit(groupsAtOnce)
	for group, list := range byGroup {
		g.Go(func() error { return b.leaveGroup(ctx, group, list) })
	}
	return g.Wait()
}

func (b *Backend) leaveGroup(ctx context.Context, group string, list []*entry) error {
	b.mu.Lock()
	s := b.baselines[group]
	b.mu.Unlock()
	if s.objection != "" {
		b.change(list, leaving, func(e *entry) { e.refuse(provisioner.StateUnsupported, s.objection) })
		return nil
	}
	for chunk := range slices.Chunk(b.whole(list, detachLimit), detachLimit) {
		if err := b.detach(ctx, s, chunk); err != nil {
			return err
		}
	}
	return nil
}

// detach takes instances out of their group with as few calls as possible. If the call is
// invalid, it first sorts out those that are no longer in the group, and then finds the
// culprit by halves.
func (b *Backend) detach(ctx context.Context, of *baseline, list []*entry) error {
	group := list[0].group
	err := b.call(ctx, "autoscaling", detachInstances, func(ctx context.Context) error {
		_, err := b.opts.AutoScaling.DetachInstances(ctx, &autoscaling.DetachInstancesInput{
			AutoScalingGroupName: aws.String(group), InstanceIds: instances(list),
			ShouldDecrementDesiredCapacity: aws.Bool(false),
		})
		return err
	})
	reason, hopeless := awsfault.Hopeless(err)
	switch {
	case err == nil:
		of.refused = 0
		b.change(list, leaving, func(e *entry) { e.departed(group) })
		b.log.Info().Str("group", group).Int("instances", len(list)).Msg("instances detached, their group replaces them")
		return nil
	case hopeless:
		b.change(list, leaving, func(e *entry) { e.refuse(provisioner.StateUnsupported, reason) })
		return nil
	case awsfault.Of(err) == awsfault.Throttled:
		return err
	case !invalid(err): // it may have been done
		b.change(list, leaving, func(e *entry) { e.stage = unlocated })
		return err
	}
	still, stillErr := b.still(ctx, group, list)
	if stillErr != nil {
		return stillErr
	}
	switch {
	case len(still) == 0:
		return nil
	case len(still) < len(list):
		return b.detach(ctx, of, still)
	case len(still) == 1 || of.refused >= strikes:
		of.refused++
		b.change(still, leaving, func(e *entry) { e.refuse(provisioner.StateFailed, awsfault.Saying(err)) })
		return nil
	}
	half := len(still) / 2
	if err := b.detach(ctx, of, still[:half]); err != nil {
		return err
	}
	return b.detach(ctx, of, still[half:])
}

// still returns those of list that can still be detached, and settles the others.
func (b *Backend) still(ctx context.Context, group string, list []*entry) ([]*entry, error) {
	members, err := b.describe(ctx, b.insist, instances(list))
	if err != nil {
		return nil, err
	}
	var still, gone []*entry
	for _, e := range list {
		m := members[e.instance]
		if m != nil && aws.ToString(m.AutoScalingGroupName) == group && aws.ToString(m.LifecycleState) == "InService" {
			still = append(still, e)
		} else {
			gone = append(gone, e)
		}
	}
	b.change(gone, leaving, func(e *entry) {
		e.intended = group
		e.locate(members[e.instance])
	})
	return still, nil
}

// termination is an instance to terminate, and who waits for it.
type termination struct {
	node, instance string
	done           chan error // takes one answer without a reader
}

var errNoAnswer = errors.New("no answer in " + terminatePatience.String())

// terminatePatience is how long Terminate waits. Its calls take about a second. Where they take
// longer, as while a burst is detached or AWS throttles, whoever waits holds a worker that
// interrupted nodes need.
const terminatePatience = 2 * time.Second

// Terminate terminates the node's instance where nobody else would: it is drained, and we
// detached it for a recommendation that EC2 need not act on, a retirement that might only
// stop it, or a rehearsal that was to terminate it. It waits for the calls that this takes, which
// it shares with other nodes, but no longer than terminatePatience. Then it withdraws, as the
// interruption might be cancelled before Terminate is called again.
func (b *Backend) Terminate(ctx context.Context, node *corev1.Node, rec interruption.Record) error {
	b.mu.Lock()
	if e := b.entries[node.Name]; e != nil && e.instance == rec.Instance {
		delete(b.entries, node.Name)
	}
	if !b.terminates(node, rec) {
		b.mu.Unlock()
		return nil
	}
	t := &termination{node: node.Name, instance: rec.Instance, done: make(chan error, 1)}
	b.requests = append(b.requests, t)
	b.awaken()
	b.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, terminatePatience, errNoAnswer)
	defer cancel()
	select {
	case err := <-t.done:
		return err
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = slices.DeleteFunc(b.requests, func(other *termination) bool { return other == t })
	return fmt.Errorf("terminate instance %s: %w", rec.Instance, context.Cause(ctx))
}

// terminates reports whether the instance is ours to end, as far as the record says: it
// names the group, so an instance that is in none has been detached.
func (b *Backend) terminates(node *corev1.Node, rec interruption.Record) bool {
	r := provisioner.Asked(rec, provisioner.ASG)
	nobodyElse := !rec.Kind.Certain() && rec.Phase == interruption.Drained || rec.Rehearsed() && rec.Release
	return r != nil && (provisioner.Pending(r.State) || r.State == provisioner.StateReady || r.Detached) && nobodyElse &&
		nodes.IsInstanceID(rec.Instance) && nodes.InstanceID(node) == rec.Instance
}

// terminate ends the instances that were asked for, and answers for each.
func (b *Backend) terminate(ctx context.Context) error {
	b.mu.Lock()
	requests := b.requests
	b.requests = nil
	b.mu.Unlock()
	for chunk := range slices.Chunk(requests, describeLimit) {
		b.terminateSome(ctx, chunk)
	}
	return nil // whoever waits tries again
}

// terminateSome first makes sure that the instances are in no group: one that was never
// detached, or that somebody has put back, is not ours. Its calls are made whatever was denied
// lately: nobody asks again for an instance that was not allowed to be terminated, and the role can
// allow one instance and deny another, by its tags.
func (b *Backend) terminateSome(ctx context.Context, list []*termination) {
	members, err := b.describe(ctx, b.insist, instances(list))
	if err != nil {
		answer(list, b.orReport(err))
		return
	}
	free := slices.DeleteFunc(slices.Clone(list), func(t *termination) bool {
		m := members[t.instance]
		if m == nil || isLeaving(aws.ToString(m.LifecycleState)) {
			return false
		}
		b.log.Warn().Str("node", t.node).Str("instance_id", t.instance).Str("group", aws.ToString(m.AutoScalingGroupName)).
			Msg("instance is in a group, not terminated")
		t.done <- nil
		return true
	})
	if len(free) > 0 {
		b.end(ctx, free)
	}
}

// end terminates instances with one call, or by halves where one of them makes it
// invalid. Terminating one that has ended is no error.
func (b *Backend) end(ctx context.Context, list []*termination) {
	ids := instances(list)
	err := b.insist(ctx, "ec2", terminate, func(ctx context.Context) error {
		_, err := b.opts.Terminate(ctx, &ec2.TerminateInstancesInput{InstanceIds: ids})
		return err
	})
	switch {
	case err == nil:
		b.log.Info().Strs("instance_ids", ids).Msg("detached instances terminated")
		answer(list, nil)
	case invalid(err) && len(list) > 1:
		b.end(ctx, list[:len(list)/2])
		b.end(ctx, list[len(list)/2:])
	case invalid(err): // it is gone, or protected
		b.log.Warn().Err(err).Str("node", list[0].node).Str("instance_id", list[0].instance).Msg("instance not terminated")
		answer(list, nil)
	default:
		answer(list, b.orReport(err))
	}
}

// orReport is the error, unless it is hopeless: that has been reported, and the node is
// drained anyway.
func (b *Backend) orReport(err error) error {
	if _, ok := awsfault.Hopeless(err); ok {
		return nil
	}
	return err
}

func answer(list []*termination, err error) {
	for _, t := range list {
		t.done <- err
	}
}
