package asg

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// match gives the Nodes that have joined and are Ready to the nodes that they replace.
func (b *Backend) match(ctx context.Context) error {
	waiting := b.in(detached)
	if len(waiting) == 0 {
		return nil
	}
	since := waiting[0].received
	for _, e := range waiting {
		if e.received.Before(since) {
			since = e.received
		}
	}
	joined := slices.DeleteFunc(b.nodes.Joined(since.Truncate(time.Second)), func(n *corev1.Node) bool {
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
	given := b.givenByRecord()
	for _, e := range waiting {
		i := slices.IndexFunc(joined, func(n *corev1.Node) bool { return !given[nodes.InstanceID(n)] && b.replaces(n, e) })
		if i < 0 {
			continue
		}
		id := nodes.InstanceID(joined[i])
		given[id] = true
		b.change([]*entry{e}, detached, func(e *entry) {
			b.given[id] = e.node
			e.replacedBy(id)
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
		if b.denied(describeInstances) != "" {
			return nil
		}
		members, err := b.describe(ctx, chunk)
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

// givenByRecord are the instances that already replace a node, as the records say.
func (b *Backend) givenByRecord() map[string]bool {
	given := map[string]bool{}
	for _, name := range b.nodes.WithRecord() {
		node, ok := b.nodes.Get(name)
		if !ok {
			continue
		}
		rec, has, err := nodes.Record(node)
		if !has || err != nil {
			continue
		}
		if r := own(rec); r != nil && r.State == provisioner.StateReady {
			given[r.Name] = true
		}
	}
	return given
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
