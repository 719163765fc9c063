package asg

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// describeLimit is how many instances, or groups, one call can ask about.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingInstances.html
const describeLimit = 50

// find finds the groups of the nodes that have just come.
func (b *Backend) find(ctx context.Context) error {
	for list := range slices.Chunk(b.whole(b.in(unlocated), describeLimit), describeLimit) {
		members, err := b.describe(ctx, b.call, instances(list))
		if reason, ok := awsfault.Hopeless(err); ok {
			b.change(list, unlocated, func(e *entry) { e.refuse(provisioner.StateUnsupported, reason) })
			continue
		}
		if err != nil {
			b.giveUp(list, err)
			return err
		}
		b.change(list, unlocated, func(e *entry) { e.locate(members[e.instance]) })
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
	b.change(late, unlocated, func(e *entry) {
		e.answer = unsupported("Auto Scaling does not say which group the instance is in: " + awsfault.Saying(err))
	})
}

// describe asks for the groups of at most describeLimit instances. Those in no group
// are not in the answer.
func (b *Backend) describe(ctx context.Context, call caller, ids []string) (map[string]*types.AutoScalingInstanceDetails, error) {
	members := make(map[string]*types.AutoScalingInstanceDetails, len(ids))
	in := &autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: ids}
	pages := autoscaling.NewDescribeAutoScalingInstancesPaginator(b.opts.AutoScaling, in)
	err := eachPage(ctx, call, describeInstances, pages, func(page *autoscaling.DescribeAutoScalingInstancesOutput) {
		for _, member := range page.AutoScalingInstances {
			members[aws.ToString(member.InstanceId)] = &member
		}
	})
	return members, err
}

// eachPage makes a call for each page of an answer.
func eachPage[P any](ctx context.Context, call caller, action string, pages interface {
	HasMorePages() bool
	NextPage(ctx context.Context, opts ...func(*autoscaling.Options)) (P, error)
}, use func(P)) error {
	for pages.HasMorePages() {
		err := call(ctx, "autoscaling", action, func(ctx context.Context) error {
			page, err := pages.NextPage(ctx)
			if err == nil {
				use(page)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
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

// newBaseline is how the group is now, without its instances.
func newBaseline(group types.AutoScalingGroup) *baseline {
	return &baseline{objection: launchesNothing(group)}
}

// instancesOf are those that the group has now.
func instancesOf(group types.AutoScalingGroup) map[string]bool {
	ids := map[string]bool{}
	for _, i := range group.Instances {
		ids[aws.ToString(i.InstanceId)] = true
	}
	return ids
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
	begun := b.begun()
	for names := range slices.Chunk(groups, describeLimit) {
		found := map[string]*baseline{}
		for _, name := range names {
			found[name] = &baseline{}
		}
		in := &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: names}
		pages := autoscaling.NewDescribeAutoScalingGroupsPaginator(b.opts.AutoScaling, in)
		err := eachPage(ctx, b.call, describeGroups, pages, func(page *autoscaling.DescribeAutoScalingGroupsOutput) {
			for _, group := range page.AutoScalingGroups {
				name := aws.ToString(group.AutoScalingGroupName)
				found[name] = newBaseline(group)
				if !begun[name] {
					found[name].before = instancesOf(group)
				}
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

// begun are the groups that an earlier process has detached instances from, as far as
// the records say: among what they have now are replacements.
func (b *Backend) begun() map[string]bool {
	begun := map[string]bool{}
	for name, r := range b.recorded() {
		if provisioner.Pending(r.State) {
			b.mu.Lock()
			e := b.entries[name]
			b.mu.Unlock()
			begun[r.Pool] = begun[r.Pool] || e == nil || e.inherited
		}
	}
	return begun
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

func instances[T interface{ id() string }](list []T) []string {
	ids := make([]string, len(list))
	for i, e := range list {
		ids[i] = e.id()
	}
	return ids
}

func (e *entry) id() string       { return e.instance }
func (t *termination) id() string { return t.instance }

// match gives the Nodes that have joined and are Ready to the nodes that they replace.
func (b *Backend) match(ctx context.Context) error {
	waiting := b.in(detached)
	if len(waiting) == 0 {
		return nil
	}
	first := slices.MinFunc(waiting, func(x, y *entry) int { return x.received.Compare(y.received) })
	joined := slices.DeleteFunc(b.opts.Nodes.Joined(first.received.Truncate(time.Second)), func(n *corev1.Node) bool {
		return !takesPods(n) || !nodes.IsInstanceID(nodes.InstanceID(n))
	})
	if len(joined) == 0 {
		return nil
	}
	if err := b.learn(ctx, joined); err != nil {
		return err
	}
	slices.SortFunc(joined, func(x, y *corev1.Node) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
	})
	recorded := b.recorded()
	b.mu.Lock()
	for name, r := range recorded {
		if r.State == provisioner.StateReady {
			b.given[r.Name] = name
		}
	}
	b.mu.Unlock()
	for _, e := range waiting {
		i := slices.IndexFunc(joined, func(n *corev1.Node) bool { return b.replaces(n, e) })
		if i < 0 {
			continue
		}
		id := nodes.InstanceID(joined[i])
		b.change([]*entry{e}, detached, func(e *entry) {
			b.given[id] = e.node
			e.stage = ready
			e.answer = interruption.Replacement{Backend: provisioner.ASG, Name: id, Pool: e.group, State: provisioner.StateReady}
		})
	}
	return nil
}

// replaces reports whether the node that has joined can be the replacement.
func (b *Backend) replaces(joined *corev1.Node, e *entry) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := nodes.InstanceID(joined)
	s := b.baselines[e.group]
	return b.members[id] == e.group && b.given[id] == "" && (s == nil || !s.before[id]) &&
		// The API server keeps whole seconds.
		!joined.CreationTimestamp.Time.Before(e.received.Truncate(time.Second))
}

// learn finds the groups of Nodes that have joined, each once.
func (b *Backend) learn(ctx context.Context, joined []*corev1.Node) error {
	var ids []string
	b.mu.Lock()
	for _, n := range joined {
		id := nodes.InstanceID(n)
		if _, known := b.members[id]; !known {
			ids = append(ids, id)
		}
	}
	b.mu.Unlock()
	for chunk := range slices.Chunk(ids, describeLimit) {
		members, err := b.describe(ctx, b.call, chunk)
		if _, ok := awsfault.Hopeless(err); ok {
			return nil
		}
		if err != nil {
			return err
		}
		b.mu.Lock()
		for _, id := range chunk {
			b.members[id] = ""
			if m := members[id]; m != nil && !isLeaving(aws.ToString(m.LifecycleState)) && !isWarm(aws.ToString(m.LifecycleState)) {
				b.members[id] = aws.ToString(m.AutoScalingGroupName)
			}
		}
		b.mu.Unlock()
	}
	return nil
}

// recorded are the replacements that the records name, by node. What the handler has in memory does
// not count.
func (b *Backend) recorded() map[string]*interruption.Replacement {
	recorded := map[string]*interruption.Replacement{}
	for _, name := range b.opts.Nodes.WithRecord() {
		if node, ok := b.opts.Nodes.Get(name); ok {
			if r := recordedOn(node); r != nil {
				recorded[name] = r
			}
		}
	}
	return recorded
}

// recordedOn is the replacement that the record on the Node names, or nil.
func recordedOn(node *corev1.Node) *interruption.Replacement {
	rec, has, err := nodes.Record(node)
	if !has || err != nil {
		return nil
	}
	return provisioner.Asked(rec, provisioner.ASG)
}

// takesPods reports whether pods can be scheduled to the node, as far as its start and its
// end are concerned.
func takesPods(node *corev1.Node) bool {
	if !node.DeletionTimestamp.IsZero() || node.Spec.Unschedulable {
		return false
	}
	for _, t := range node.Spec.Taints {
		if strings.HasPrefix(t.Key, "node.kubernetes.io/") || strings.HasPrefix(t.Key, "node.cloudprovider.kubernetes.io/") {
			return false
		}
	}
	return nodes.Ready(node)
}
