package asg

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/asgemu"
	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// emulated runs a Backend with the real SDK against the emulator, which holds groups to
// the services' own limits and answers in their words.
func emulated(t *testing.T) (*asgemu.Server, *cluster) {
	t.Helper()
	k := &cluster{
		t: t, writes: true, log: &bytes.Buffer{},
		nodes: map[string]*corev1.Node{}, answers: map[string]interruption.Replacement{}, history: map[string][]string{},
	}
	server := asgemu.Start(asgemu.Options{Booted: func(i asgemu.Instance) { k.node(i.ID) }})
	t.Cleanup(server.Close)
	conf := aws.Config{Region: "eu-west-1", Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
	})}
	k.api = autoscaling.NewFromConfig(conf, func(o *autoscaling.Options) {
		o.BaseEndpoint, o.Retryer, o.APIOptions = &server.URL, aws.NopRetryer{}, append(o.APIOptions, awsfault.PlainBody)
	})
	k.terminate = ec2.NewFromConfig(conf, func(o *ec2.Options) {
		o.BaseEndpoint, o.Retryer, o.APIOptions = &server.URL, aws.NopRetryer{}, append(o.APIOptions, awsfault.PlainBody)
	}).TerminateInstances
	t.Cleanup(k.restart())
	return server, k
}

// eventually polls until every node of the first n is in the state.
func (k *cluster) eventually(n int, state string) {
	k.t.Helper()
	var at string
	for deadline := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		done := true
		for i := range n {
			if got := k.answer("node-" + id(i)); got.State != state {
				done, at = false, id(i)+" is "+got.State+" "+got.Reason
				break
			}
		}
		if done {
			return
		}
		if time.Now().After(deadline) {
			k.t.Fatalf("not all are %s within a minute: %s", state, at)
		}
	}
}

func (k *cluster) interruptGroup(server *asgemu.Server, n int, change func(*interruption.Record)) {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = id(i)
	}
	server.CreateGroup("workers", ids...)
	for _, id := range ids {
		k.interrupt(k.node(id), change)
	}
}

func TestEmulatedBurst(t *testing.T) {
	server, k := emulated(t)
	server.Fail(asgemu.Fault{Effect: asgemu.Throttled, Times: 2, Action: "DetachInstances"})
	server.Fail(asgemu.Fault{Effect: asgemu.Contention, Times: 1, Action: "DetachInstances"})
	server.Fail(asgemu.Fault{Effect: asgemu.Unavailable, Times: 1, Action: "DetachInstances", LoseReply: true})
	server.Fail(asgemu.Fault{Effect: asgemu.Reset, Times: 2, Action: "DescribeAutoScalingInstances"})
	const n = 120
	k.interruptGroup(server, n, nil)
	k.eventually(n, provisioner.StateReady)
	given := map[string]bool{}
	for i := range n {
		got := k.answer("node-" + id(i))
		if given[got.Name] || got.Pool != "workers" {
			t.Errorf("%+v is given out twice", got)
		}
		given[got.Name] = true
	}
	if got := server.Launched("workers"); got != n {
		t.Errorf("%d launched, want %d", got, n)
	}
	if server.Largest("DetachInstances") > 20 || server.Largest("DescribeAutoScalingInstances") > 50 {
		t.Errorf("%d detached, %d described by one call", server.Largest("DetachInstances"), server.Largest("DescribeAutoScalingInstances"))
	}
	t.Logf("%d nodes: %d DescribeAutoScalingInstances, %d DescribeAutoScalingGroups, %d DetachInstances", n,
		server.Requests("DescribeAutoScalingInstances"), server.Requests("DescribeAutoScalingGroups"), server.Requests("DetachInstances"))
}

// One instance is refused, and one has been taken out by somebody else.
func TestEmulatedBadInstances(t *testing.T) {
	server, k := emulated(t)
	server.Fail(asgemu.Fault{Effect: asgemu.Invalid, Action: "DetachInstances", Instance: id(3)})
	const n = 10
	k.interruptGroup(server, n, nil)
	k.eventually(3, provisioner.StateReady)
	for i := range n {
		got := k.answer("node-" + id(i))
		if want := i == 3; (got.State == provisioner.StateFailed) != want {
			t.Errorf("node %d: %+v", i, got)
		}
	}
}

func TestEmulatedPermissions(t *testing.T) {
	for _, action := range []string{"DescribeAutoScalingInstances", "DetachInstances"} {
		t.Run(action, func(t *testing.T) {
			server, k := emulated(t)
			server.Fail(asgemu.Fault{Effect: asgemu.AccessDenied, Action: action})
			k.interruptGroup(server, 5, nil)
			k.eventually(5, provisioner.StateUnsupported)
			if got := k.answer("node-" + id(0)).Reason; got != "not allowed to call autoscaling:"+action {
				t.Errorf("reason %q", got)
			}
			if n := server.Launched("workers"); n != 0 {
				t.Errorf("%d launched", n)
			}
		})
	}
}

func TestEmulatedTermination(t *testing.T) {
	server, k := emulated(t)
	k.interruptGroup(server, 2, func(r *interruption.Record) { r.Kind, r.Deadline = interruption.RebalanceRecommendation, time.Time{} })
	k.eventually(2, provisioner.StateReady)
	release := func(i int) error {
		rec := drained(id(i))
		answer := k.answer("node-" + id(i))
		rec.Replacement = &answer
		node, _ := k.Get("node-" + id(i))
		for { // as the handler does, where a busy machine takes longer than terminatePatience
			if err := k.backend.Terminate(t.Context(), node, rec); err == nil || !strings.Contains(err.Error(), "no answer in") {
				return err
			}
		}
	}
	server.Fail(asgemu.Fault{Effect: asgemu.Throttled, Times: 1, Action: "TerminateInstances"})
	if err := release(0); err == nil || !strings.Contains(err.Error(), "RequestLimitExceeded") {
		t.Errorf("got %v, want throttling", err)
	}
	for range 2 { // again is no error
		if err := release(0); err != nil {
			t.Error(err)
		}
	}
	server.Fail(asgemu.Fault{Effect: asgemu.AccessDenied, Action: "TerminateInstances"})
	if err := release(1); err != nil {
		t.Errorf("a missing permission is reported, not retried: %v", err)
	}
	if i, _ := server.Instance(id(0)); i.State == asgemu.Running {
		t.Errorf("instance %s", i)
	}
	if i, _ := server.Instance(id(1)); i.State != asgemu.Running {
		t.Errorf("instance %s", i)
	}
}

// With Capacity Rebalancing the group has launched the replacements before the instances leave.
func TestEmulatedCapacityRebalancing(t *testing.T) {
	server, k := emulated(t)
	const n = 30
	ids := make([]string, n)
	nodes := make([]*corev1.Node, n)
	for i := range ids {
		ids[i] = id(i)
		nodes[i] = k.node(ids[i])
	}
	server.CreateGroup("workers", ids...)
	server.RebalanceCapacity("workers")
	server.Suspend("workers", "Terminate") // else a slow machine sees the group end what is to be detached
	for i := range n {
		server.Recommend(ids[i])
	}
	for _, node := range nodes {
		k.interrupt(node, recommended)
	}
	k.eventually(n, provisioner.StateReady)
	if got := server.Launched("workers"); got != n {
		t.Errorf("%d launched, want %d", got, n)
	}
}
