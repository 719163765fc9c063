package asg

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"golang.org/x/sync/errgroup"

	"spot-handler/handler/awsfault"
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
	if err := b.inspect(ctx, slices.Sorted(maps.Keys(byGroup)), late); err != nil {
		return err
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
	d := &detachment{Backend: b, group: group, baseline: s}
	for chunk := range slices.Chunk(b.whole(list, detachLimit), detachLimit) {
		if err := d.detach(ctx, chunk); err != nil {
			return err
		}
	}
	return nil
}

// detachment takes instances out of one group.
type detachment struct {
	*Backend
	group    string
	baseline *baseline
}

// detach takes instances out of the group with as few calls as possible. If the call is
// invalid, it first sorts out those that are no longer in the group, and then finds the
// culprit by halves.
func (d *detachment) detach(ctx context.Context, list []*entry) error {
	if reason := d.denied(detachInstances); reason != "" {
		d.change(list, leaving, func(e *entry) { e.refuse(provisioner.StateUnsupported, reason) })
		return nil
	}
	err := d.try(ctx, list)
	reason, hopeless := awsfault.Hopeless(err)
	switch {
	case err == nil:
		d.baseline.refused = 0
		d.change(list, leaving, func(e *entry) { e.departed(d.group) })
		d.log.Info().Str("group", d.group).Int("instances", len(list)).Msg("instances detached, their group replaces them")
		return nil
	case hopeless:
		d.change(list, leaving, func(e *entry) { e.refuse(provisioner.StateUnsupported, reason) })
		return nil
	case awsfault.Of(err) == awsfault.Throttled:
		return err
	case !invalid(err): // it may have been done
		d.change(list, leaving, func(e *entry) { e.stage = looking })
		return err
	}
	still, lookErr := d.still(ctx, list)
	if lookErr != nil {
		return lookErr
	}
	switch {
	case len(still) == 0:
		return nil
	case len(still) < len(list):
		return d.detach(ctx, still)
	case len(still) == 1 || d.baseline.refused >= strikes:
		d.baseline.refused++
		d.change(still, leaving, func(e *entry) { e.refuse(provisioner.StateFailed, awsfault.Saying(err)) })
		return nil
	}
	half := len(still) / 2
	if err := d.detach(ctx, still[:half]); err != nil {
		return err
	}
	return d.detach(ctx, still[half:])
}

func (d *detachment) try(ctx context.Context, list []*entry) error {
	return d.call(ctx, "autoscaling", detachInstances, func(ctx context.Context) error {
		_, err := d.api.DetachInstances(ctx, &autoscaling.DetachInstancesInput{
			AutoScalingGroupName: aws.String(d.group), InstanceIds: instances(list),
			ShouldDecrementDesiredCapacity: aws.Bool(false),
		})
		return err
	})
}

// still returns those of list that can still be detached, and settles the others.
func (d *detachment) still(ctx context.Context, list []*entry) ([]*entry, error) {
	members, err := d.describe(ctx, instances(list))
	if err != nil {
		return nil, err
	}
	var still, gone []*entry
	for _, e := range list {
		m := members[e.instance]
		if m != nil && aws.ToString(m.AutoScalingGroupName) == d.group && aws.ToString(m.LifecycleState) == "InService" {
			still = append(still, e)
		} else {
			gone = append(gone, e)
		}
	}
	d.change(gone, leaving, func(e *entry) {
		e.intended = d.group
		e.locate(members[e.instance])
	})
	return still, nil
}
