package asg

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// cloud is as little of Auto Scaling and EC2 as the timing of calls needs; what the
// services say is proved with the emulator.
type cloud struct {
	mu         sync.Mutex
	state      map[string]string // by instance: lifecycle state
	group      map[string]string // by instance
	weight     map[string]string // by instance; none: the group weighs none
	suspended  map[string]bool   // by group
	desired    map[string]int32  // by group; 0: not said
	calls      []call
	fail       func(action string, ids []string) error
	delay      time.Duration // of each call to detach
	loseReply  bool          // fail after it has been done
	terminated []string
}

type call struct {
	action string
	ids    []string
	at     time.Time
}

var (
	_ AutoScaling = (*cloud)(nil)
)

func newCloud() *cloud {
	return &cloud{
		state: map[string]string{}, group: map[string]string{}, weight: map[string]string{},
		suspended: map[string]bool{}, desired: map[string]int32{},
	}
}

func apiError(code string) error {
	return &smithy.GenericAPIError{Code: code, Message: "the service says " + code}
}

func (c *cloud) put(group, state string, ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		c.group[id], c.state[id] = group, state
	}
}

// enter counts a call and says how it fails. The caller holds mu.
func (c *cloud) enter(action string, ids []string) error {
	c.calls = append(c.calls, call{action, slices.Clone(ids), time.Now()})
	if c.fail != nil {
		return c.fail(action, ids)
	}
	return nil
}

func (c *cloud) of(action string) []call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.calls), func(x call) bool { return x.action != action })
}

func (c *cloud) DescribeAutoScalingInstances(_ context.Context, in *autoscaling.DescribeAutoScalingInstancesInput, _ ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingInstancesOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.enter(describeInstances, in.InstanceIds); err != nil {
		return nil, err
	}
	out := &autoscaling.DescribeAutoScalingInstancesOutput{}
	for _, id := range in.InstanceIds {
		if c.group[id] != "" {
			out.AutoScalingInstances = append(out.AutoScalingInstances, types.AutoScalingInstanceDetails{
				InstanceId: aws.String(id), AutoScalingGroupName: aws.String(c.group[id]), LifecycleState: aws.String(c.state[id]),
			})
		}
	}
	return out, nil
}

func (c *cloud) DescribeAutoScalingGroups(_ context.Context, in *autoscaling.DescribeAutoScalingGroupsInput, _ ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingGroupsOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.enter(describeGroups, in.AutoScalingGroupNames); err != nil {
		return nil, err
	}
	out := &autoscaling.DescribeAutoScalingGroupsOutput{}
	for _, name := range in.AutoScalingGroupNames {
		g := types.AutoScalingGroup{AutoScalingGroupName: aws.String(name)}
		if c.suspended[name] {
			g.SuspendedProcesses = []types.SuspendedProcess{{ProcessName: aws.String("Launch")}}
		}
		if n := c.desired[name]; n > 0 {
			g.DesiredCapacity = aws.Int32(n)
		}
		for id, group := range c.group {
			if group != name {
				continue
			}
			member := types.Instance{InstanceId: aws.String(id), LifecycleState: types.LifecycleState(c.state[id])}
			if w := c.weight[id]; w != "" {
				member.WeightedCapacity = aws.String(w)
			}
			g.Instances = append(g.Instances, member)
		}
		out.AutoScalingGroups = append(out.AutoScalingGroups, g)
	}
	return out, nil
}

func (c *cloud) DetachInstances(_ context.Context, in *autoscaling.DetachInstancesInput, _ ...func(*autoscaling.Options)) (*autoscaling.DetachInstancesOutput, error) {
	time.Sleep(c.delay)
	c.mu.Lock()
	defer c.mu.Unlock()
	failure := c.enter(detachInstances, in.InstanceIds)
	if failure != nil && !c.loseReply {
		return nil, failure
	}
	if aws.ToBool(in.ShouldDecrementDesiredCapacity) {
		return nil, apiError("decremented")
	}
	for _, id := range in.InstanceIds {
		if c.group[id] != *in.AutoScalingGroupName || c.state[id] != "InService" {
			return nil, apiError("ValidationError")
		}
	}
	for _, id := range in.InstanceIds {
		c.state[id] = "Detaching"
	}
	return &autoscaling.DetachInstancesOutput{}, failure
}

func (c *cloud) TerminateInstances(_ context.Context, in *ec2.TerminateInstancesInput, _ ...func(*ec2.Options)) (*ec2.TerminateInstancesOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.enter(terminate, in.InstanceIds); err != nil {
		return nil, err
	}
	c.terminated = append(c.terminated, in.InstanceIds...)
	return &ec2.TerminateInstancesOutput{}, nil
}

// cluster is the Nodes, and what the handler does for those that are interrupted: it
// asks whenever it is notified and keeps the answer, in the record too.
type cluster struct {
	*cloud
	api       AutoScaling
	terminate func(context.Context, *ec2.TerminateInstancesInput, ...func(*ec2.Options)) (*ec2.TerminateInstancesOutput, error)
	t         *testing.T
	backend   *Backend
	log       *bytes.Buffer
	writes    bool // the answers into the records

	nodesMu sync.Mutex
	nodes   map[string]*corev1.Node
	answers map[string]interruption.Replacement
	history map[string][]string // states
	asking  sync.Map            // by node: the handler reconciles one once at a time
}

// start runs a Backend for the cluster until the test ends. It is called in a bubble.
func start(t *testing.T, c *cloud) *cluster {
	t.Helper()
	k := &cluster{
		cloud: c, api: c, terminate: c.TerminateInstances, t: t, writes: true, log: &bytes.Buffer{},
		nodes: map[string]*corev1.Node{}, answers: map[string]interruption.Replacement{}, history: map[string][]string{},
	}
	k.restart()
	return k
}

// restart is what a new process knows: nothing but the Nodes.
func (k *cluster) restart() (stop func()) {
	ctx, cancel := context.WithCancel(k.t.Context())
	k.nodesMu.Lock()
	k.answers = map[string]interruption.Replacement{}
	k.nodesMu.Unlock()
	b := New(Options{AutoScaling: k.api, Terminate: k.terminate, Nodes: k, Logger: zerolog.New(zerolog.SyncWriter(k.log)), Notify: func(node string) { go k.ask(node) }})
	k.backend = b
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := b.Run(ctx); err != nil {
			k.t.Errorf("Run: %v", err)
		}
	}()
	return func() { cancel(); <-done }
}

// ask is the handler's part.
func (k *cluster) ask(name string) interruption.Replacement {
	lock, _ := k.asking.LoadOrStore(name, &sync.Mutex{})
	lock.(*sync.Mutex).Lock()
	defer lock.(*sync.Mutex).Unlock()
	k.nodesMu.Lock()
	node := k.nodes[name]
	prev, has := k.answers[name]
	k.nodesMu.Unlock()
	if node == nil {
		return interruption.Replacement{}
	}
	rec, err := interruption.ParseRecord(node.Annotations[interruption.Annotation])
	if err != nil {
		k.t.Error(err)
		return interruption.Replacement{}
	}
	if has {
		rec.Replacement = &prev
	}
	got, err := k.backend.Request(k.t.Context(), node, rec, provisioner.Need{Moving: []*corev1.Pod{{}}})
	if err != nil {
		k.t.Errorf("Request: %v", err)
	}
	k.nodesMu.Lock()
	defer k.nodesMu.Unlock()
	k.answers[name] = got
	if h := k.history[name]; len(h) == 0 || h[len(h)-1] != got.State {
		k.history[name] = append(h, got.State)
	}
	if k.writes && (rec.Replacement == nil || rec.Replacement.Name != got.Name) {
		rec.Replacement = &got
		k.nodes[name] = withRecord(node, rec)
		if !has || prev != got {
			go k.ask(name) // the informer brings the Node back
		}
	}
	return got
}

func withRecord(node *corev1.Node, rec interruption.Record) *corev1.Node {
	node = node.DeepCopy()
	node.Annotations = map[string]string{interruption.Annotation: rec.String()}
	return node
}

func (k *cluster) answer(name string) interruption.Replacement {
	k.nodesMu.Lock()
	defer k.nodesMu.Unlock()
	return k.answers[name]
}

func id(i int) string { return fmt.Sprintf("i-%017x", i) }

// node adds a Node of the instance, Ready.
func (k *cluster) node(instance string) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-" + instance, CreationTimestamp: metav1.NewTime(time.Now().Truncate(time.Second))},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///eu-west-1a/" + instance},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	k.set(n)
	return n
}

func (k *cluster) set(n *corev1.Node) {
	k.nodesMu.Lock()
	defer k.nodesMu.Unlock()
	k.nodes[n.Name] = n
}

// interrupt puts a record on the Node and asks for a replacement.
func (k *cluster) interrupt(n *corev1.Node, change func(*interruption.Record)) {
	rec := interruption.NewRecord(interruption.Notice{
		Kind: interruption.SpotInterruption, Source: interruption.Queue, InstanceID: strings.TrimPrefix(n.Name, "node-"),
		Noticed: time.Now(), Received: time.Now(), Deadline: time.Now().Add(2 * time.Minute),
	})
	if change != nil {
		change(&rec)
	}
	k.set(withRecord(n, rec))
	k.ask(n.Name)
}

func (k *cluster) Get(name string) (*corev1.Node, bool) {
	k.nodesMu.Lock()
	defer k.nodesMu.Unlock()
	n, ok := k.nodes[name]
	return n, ok
}

func (k *cluster) WithRecord() (names []string) {
	k.nodesMu.Lock()
	defer k.nodesMu.Unlock()
	for name, n := range k.nodes {
		if n.Annotations != nil {
			names = append(names, name)
		}
	}
	return names
}

func (k *cluster) Joined(since time.Time) (joined []*corev1.Node) {
	k.nodesMu.Lock()
	defer k.nodesMu.Unlock()
	for _, n := range k.nodes {
		if n.Annotations == nil && !n.CreationTimestamp.Time.Before(since) {
			joined = append(joined, n)
		}
	}
	return joined
}
