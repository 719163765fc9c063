package asg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	b.stopWaiting()
	waiting := b.in(detached)
	if len(waiting) == 0 {
		return nil
	}
	groups := make([]string, len(waiting))
	for i, e := range waiting {
		groups[i] = e.group
	}
	slices.Sort(groups)
	// Without a baseline a Node of the group that has joined is good enough: pods wait for it.
	inspectErr := b.inspect(ctx, slices.Compact(groups))
	first := slices.MinFunc(waiting, func(x, y *entry) int { return x.since.Compare(y.since) })
	joined := slices.DeleteFunc(b.candidates(first.since), func(n *corev1.Node) bool {
		return !takesPods(n) || !nodes.IsInstanceID(nodes.InstanceID(n))
	})
	if len(joined) == 0 {
		return inspectErr
	}
	if err := b.learn(ctx, joined); err != nil {
		return err
	}
	slices.SortFunc(joined, func(x, y *corev1.Node) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
	})
	b.giveRecorded()
	for _, e := range waiting {
		i := slices.IndexFunc(joined, func(n *corev1.Node) bool { return b.replaces(n, e) })
		if i < 0 {
			continue
		}
		id := nodes.InstanceID(joined[i])
		b.change([]*entry{e}, detached, func(e *entry) {
			b.given[id] = replaced{e.node, e.instance}
			e.stage = ready
			e.answer = interruption.Replacement{
				Backend:  provisioner.ASG,
				Name:     id,
				Pool:     e.group,
				State:    provisioner.StateReady,
				Detached: true,
			}
		})
	}
	return inspectErr
}

// launchPatience is how long an instance without a deadline waits out of its group for what the group
// launches. Large machines take some minutes to boot. A group that launches nothing has no capacity, or
// was made smaller meanwhile.
const launchPatience = 10 * time.Minute

// stopWaiting gives up on the replacements of instances that have waited for launchPatience. An
// instance that has a deadline waits until then.
func (b *Backend) stopWaiting() {
	for _, e := range b.in(detached) {
		from := e.begun
		if from.IsZero() {
			from = e.asked
		}
		if !e.deadline.IsZero() || time.Since(from) < launchPatience {
			continue
		}
		b.change([]*entry{e}, detached, func(e *entry) {
			e.refuse(provisioner.StateFailed, fmt.Sprintf("Auto Scaling group %s has given no Ready node within %s", e.group, launchPatience))
			e.answer.Detached = true
		})
	}
}

// candidates are the Nodes that can be replacements: those that have joined since then, and those that
// their groups launched ahead.
func (b *Backend) candidates(since time.Time) []*corev1.Node {
	b.mu.Lock()
	ahead := map[string]bool{}
	for _, of := range b.baselines {
		maps.Copy(ahead, of.ahead)
	}
	b.mu.Unlock()
	if len(ahead) == 0 {
		return b.opts.Nodes.Joined(since)
	}
	return slices.DeleteFunc(b.opts.Nodes.Joined(time.Time{}), func(n *corev1.Node) bool {
		return n.CreationTimestamp.Time.Before(since) && !ahead[nodes.InstanceID(n)]
	})
}

// giveRecorded remembers which instances the records have given to nodes.
func (b *Backend) giveRecorded() {
	recorded := b.recorded()
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, r := range recorded {
		if node, ok := b.opts.Nodes.Get(name); ok && r.State == provisioner.StateReady {
			b.given[r.Name] = replaced{name, nodes.InstanceID(node)}
		}
	}
	maps.DeleteFunc(b.given, func(_ string, to replaced) bool { return b.entries[to.node] == nil && b.stays(to) })
}

// stays reports whether the node stays in service because its interruption was cancelled.
func (b *Backend) stays(of replaced) bool {
	node, ok := b.opts.Nodes.Get(of.node)
	if !ok || nodes.InstanceID(node) != of.instance {
		return false
	}
	_, err := nodes.Record(node)
	return errors.Is(err, nodes.ErrNoRecord)
}

// replaces reports whether the node that has joined can be the replacement.
func (b *Backend) replaces(joined *corev1.Node, e *entry) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := nodes.InstanceID(joined)
	if b.members[id] != e.group || b.given[id] != (replaced{}) {
		return false
	}
	of := b.baselines[e.group]
	if of != nil && (of.before[id] || of.ahead[id]) {
		return of.ahead[id]
	}
	return !joined.CreationTimestamp.Time.Before(e.since)
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
	rec, err := nodes.Record(node)
	if err != nil {
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
