package asg

import (
	"context"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/provisioner"
)

// describeLimit is how many instances, or groups, one call can ask about.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingInstances.html
const describeLimit = 50

// look finds the groups of the nodes that have just come.
func (b *Backend) look(ctx context.Context) error {
	for list := range slices.Chunk(b.whole(b.in(looking), describeLimit), describeLimit) {
		if reason := b.denied(describeInstances); reason != "" {
			b.change(list, looking, func(e *entry) { e.refuse(provisioner.StateUnsupported, reason) })
			continue
		}
		members, err := b.describe(ctx, instances(list))
		if reason, ok := awsfault.Hopeless(err); ok {
			b.change(list, looking, func(e *entry) { e.refuse(provisioner.StateUnsupported, reason) })
			continue
		}
		if err != nil {
			b.giveUp(list, err)
			return err
		}
		b.change(list, looking, func(e *entry) { e.locate(members[e.instance]) })
	}
	return nil
}

// patience is how long a node waits for an answer about its group. It has two minutes in
// all, and might not be in any group.
const patience = 10 * time.Second

// giveUp lets nodes go on without a replacement that have waited for too long. One that was
// about to leave its group still waits.
func (b *Backend) giveUp(list []*entry, err error) {
	b.mu.Lock()
	late := slices.DeleteFunc(slices.Clone(list), func(e *entry) bool {
		return e.intended != "" || time.Since(e.asked) < patience || e.answer.State == provisioner.StateUnsupported
	})
	b.mu.Unlock()
	b.change(late, looking, func(e *entry) {
		e.answer = unsupported("Auto Scaling does not say which group the instance is in: " + awsfault.Saying(err))
	})
}

// describe asks for the groups of at most describeLimit instances. Those in no group
// are not in the answer.
func (b *Backend) describe(ctx context.Context, ids []string) (map[string]*types.AutoScalingInstanceDetails, error) {
	members := make(map[string]*types.AutoScalingInstanceDetails, len(ids))
	pages := autoscaling.NewDescribeAutoScalingInstancesPaginator(b.api, &autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: ids})
	for pages.HasMorePages() {
		err := b.call(ctx, "autoscaling", describeInstances, func(ctx context.Context) error {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return err
			}
			for _, member := range page.AutoScalingInstances {
				members[aws.ToString(member.InstanceId)] = &member
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return members, nil
}

// baseline is what a group was like before the first of its instances was detached.
type baseline struct {
	// before are the instances that it had already; nil where that is not known.
	before map[string]bool
	// objection is why it would launch no replacement, or "".
	objection string
	// refused is how many instances in a row it did not let go, each asked for alone.
	// Only detach uses it.
	refused int
}

// inspect looks at groups that are new. A baseline makes things better and decides nothing:
// a group goes without where it is not found, where looking is not allowed, and where it
// fails although instances have waited for long.
func (b *Backend) inspect(ctx context.Context, groups []string, late bool) error {
	b.mu.Lock()
	groups = slices.DeleteFunc(groups, func(g string) bool { return b.baselines[g] != nil })
	b.mu.Unlock()
	if len(groups) == 0 {
		return nil
	}
	begun := b.begun()
	for names := range slices.Chunk(groups, describeLimit) {
		found := map[string]*baseline{}
		for _, name := range names {
			found[name] = &baseline{}
		}
		if b.denied(describeGroups) == "" {
			err := b.describeGroups(ctx, names, func(group types.AutoScalingGroup) {
				name := aws.ToString(group.AutoScalingGroupName)
				found[name] = &baseline{objection: launchesNothing(group)}
				if !begun[name] {
					found[name].before = map[string]bool{}
					for _, i := range group.Instances {
						found[name].before[aws.ToString(i.InstanceId)] = true
					}
				}
			})
			if _, ok := awsfault.Hopeless(err); err != nil && !ok && !late {
				return err
			}
		}
		b.mu.Lock()
		for name, s := range found {
			b.baselines[name] = s
		}
		b.mu.Unlock()
	}
	return nil
}

// begun are the groups that an earlier process has detached instances from, as far as
// the records say: among what they have now are replacements.
func (b *Backend) begun() map[string]bool {
	begun := map[string]bool{}
	for _, name := range b.nodes.WithRecord() {
		node, ok := b.nodes.Get(name)
		if !ok {
			continue
		}
		if group := recordedGroup(node); group != "" {
			b.mu.Lock()
			e := b.entries[name]
			b.mu.Unlock()
			begun[group] = begun[group] || e == nil || e.inherited
		}
	}
	return begun
}

func (b *Backend) describeGroups(ctx context.Context, names []string, each func(types.AutoScalingGroup)) error {
	pages := autoscaling.NewDescribeAutoScalingGroupsPaginator(b.api, &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: names})
	for pages.HasMorePages() {
		err := b.call(ctx, "autoscaling", describeGroups, func(ctx context.Context) error {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return err
			}
			for _, group := range page.AutoScalingGroups {
				each(group)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// launchesNothing is why the group would launch nothing for an instance that leaves it, or "".
func launchesNothing(group types.AutoScalingGroup) string {
	name := aws.ToString(group.AutoScalingGroupName)
	for _, p := range group.SuspendedProcesses {
		if aws.ToString(p.ProcessName) == "Launch" {
			return "Auto Scaling group " + name + " launches nothing: its process Launch is suspended"
		}
	}
	if status := aws.ToString(group.Status); status != "" {
		return "Auto Scaling group " + name + " launches nothing: " + status
	}
	return ""
}

func instances(list []*entry) []string {
	ids := make([]string, len(list))
	for i, e := range list {
		ids[i] = e.instance
	}
	return ids
}

func sorted(list []*entry) []*entry {
	slices.SortFunc(list, sooner)
	return list
}
