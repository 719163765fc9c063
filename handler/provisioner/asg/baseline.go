package asg

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// baseline is what a group was like when the first of its nodes needed a replacement.
type baseline struct {
	// ahead are the members that the group launched ahead of that, on top of its desired capacity. It
	// does so with Capacity Rebalancing, and launches nothing more when the instance leaves that
	// each is to replace.
	ahead map[string]bool
	// before are its other members: they replace nobody.
	before map[string]bool
	// objection is why it would launch no replacement, or "".
	objection string
	// refused is how many instances in a row it did not let go, each asked for alone.
	// Only detach uses it.
	refused int
}

// inspect describes groups that are new. A baseline makes things better and decides nothing: a group
// goes without if it is not found or if asking is not allowed.
func (b *Backend) inspect(ctx context.Context, groups []string) error {
	b.mu.Lock()
	groups = slices.DeleteFunc(groups, func(g string) bool { return b.baselines[g] != nil })
	b.mu.Unlock()
	if len(groups) == 0 {
		return nil
	}
	b.giveRecorded()
	free := b.unconcerned()
	for names := range slices.Chunk(groups, describeLimit) {
		found := map[string]*baseline{}
		for _, name := range names {
			found[name] = &baseline{}
		}
		in := &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: names}
		pages := autoscaling.NewDescribeAutoScalingGroupsPaginator(b.opts.AutoScaling, in)
		err := eachPage(ctx, b.call, describeGroups, pages, func(page *autoscaling.DescribeAutoScalingGroupsOutput) {
			for _, group := range page.AutoScalingGroups {
				found[aws.ToString(group.AutoScalingGroupName)] = newBaseline(group, b.departures(group), free)
			}
		})
		if _, ok := awsfault.Hopeless(err); err != nil && !ok {
			return err
		}
		b.mu.Lock()
		maps.Copy(b.baselines, found)
		b.mu.Unlock()
	}
	return nil
}

// goWithoutBaselines lets groups go without that could not be described although instances have waited
// for long.
func (b *Backend) goWithoutBaselines(groups map[string][]*entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for group := range groups {
		if b.baselines[group] == nil {
			b.baselines[group] = &baseline{}
		}
	}
}

// newBaseline is how the group is now. departed is how many instances have left it for which it is to
// launch, or has launched, another; free are the Nodes that are neither interrupted nor given out, by
// their instance.
//
// What the group runs beyond its desired capacity, and in place of those that have left, are
// replacements: of the members that are free, the newest.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-capacity-rebalancing.html
func newBaseline(group types.AutoScalingGroup, departed int, free func(instance string) (joined time.Time, ok bool)) *baseline {
	of := &baseline{ahead: map[string]bool{}, before: map[string]bool{}, objection: launchesNothing(group)}
	excess := 0
	if units := aws.ToString(group.DesiredCapacityType); group.DesiredCapacity != nil && (units == "" || units == "units") {
		excess = departed - int(*group.DesiredCapacity)
	}
	var candidates []types.Instance
	joined := map[string]time.Time{}
	for _, i := range group.Instances {
		id := aws.ToString(i.InstanceId)
		of.before[id] = true
		if !counts(i) {
			continue
		}
		excess += weight(i)
		if at, ok := free(id); ok {
			candidates, joined[id] = append(candidates, i), at
		}
	}
	if group.DesiredCapacity == nil {
		return of
	}
	slices.SortFunc(candidates, func(x, y types.Instance) int {
		a, b := aws.ToString(x.InstanceId), aws.ToString(y.InstanceId)
		return cmp.Or(joined[b].Compare(joined[a]), cmp.Compare(a, b))
	})
	for _, i := range candidates {
		if excess -= weight(i); excess < 0 {
			break
		}
		delete(of.before, aws.ToString(i.InstanceId))
		of.ahead[aws.ToString(i.InstanceId)] = true
	}
	return of
}

// counts reports whether the group counts the instance as part of its desired capacity.
func counts(i types.Instance) bool {
	return i.LifecycleState == types.LifecycleStateInService || strings.HasPrefix(string(i.LifecycleState), "Pending")
}

// weight is how much of the desired capacity the instance is.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-mixed-instances-groups-instance-weighting.html
func weight(i types.Instance) int {
	n, err := strconv.Atoi(aws.ToString(i.WeightedCapacity))
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// unconcerned returns a function that says of an instance when its Node joined, if it is neither
// interrupted nor given to a node. One that has no Node yet joins last.
func (b *Backend) unconcerned() func(instance string) (joined time.Time, ok bool) {
	booting := time.Now()
	free := map[string]*corev1.Node{}
	for _, n := range b.opts.Nodes.Joined(time.Time{}) {
		free[nodes.InstanceID(n)] = n
	}
	interrupted := map[string]bool{}
	for _, name := range b.opts.Nodes.WithRecord() {
		if node, ok := b.opts.Nodes.Get(name); ok {
			interrupted[nodes.InstanceID(node)] = true
		}
	}
	b.mu.Lock()
	given := maps.Clone(b.given)
	for _, e := range b.entries {
		interrupted[e.instance] = true
	}
	b.mu.Unlock()
	return func(instance string) (time.Time, bool) {
		if interrupted[instance] || given[instance] != (replaced{}) {
			return time.Time{}, false
		}
		if node := free[instance]; node != nil {
			return node.CreationTimestamp.Time, true
		}
		return booting, true
	}
}

// departures is how many instances have left the group, or are leaving, that wait for what it launches.
func (b *Backend) departures(group types.AutoScalingGroup) int {
	name := aws.ToString(group.AutoScalingGroupName)
	waiting := map[string]bool{} // by instance
	for node, r := range b.recorded() {
		if n, ok := b.opts.Nodes.Get(node); ok && r.Pool == name && provisioner.Pending(r.State) {
			waiting[nodes.InstanceID(n)] = true
		}
	}
	for _, e := range b.in(detached) {
		if e.group == name {
			waiting[e.instance] = true
		}
	}
	for _, i := range group.Instances {
		if counts(i) {
			delete(waiting, aws.ToString(i.InstanceId))
		}
	}
	return len(waiting)
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
