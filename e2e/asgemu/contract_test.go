package asgemu_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"spot-handler/e2e/asgemu"
	"spot-handler/handler/awsfault"
)

// contract is what AWS documents about Auto Scaling and EC2, or is known to answer, and what the daemon or its
// tests rely on. It uses only the real SDK, so it holds this emulator and one that others wrote to the same text.
var contract = []struct {
	name  string
	check func(*testing.T, *service)
}{
	{"an instance is listed with its group, one in no group is not listed", checkDescribeInstances},
	{"50 instances at most are described by one call", checkDescribeLimit},
	{"a group is described with its instances", checkDescribeGroups},
	{"50 groups at most are described by one call", checkGroupLimit},
	{"a group that is not there is left out", checkNoGroupDescribed},
	{"suspended processes are named", checkSuspended},
	{"a detached instance leaves the group and runs on", checkDetach},
	{"a detached instance is replaced, the size stays", checkReplaced},
	{"an instance is detached once", checkDetachOnce},
	{"20 instances at most are detached by one call", checkDetachLimit},
	{"one instance of another group spoils the whole call", checkBadID},
	{"a group that is not there has nothing to detach", checkNoGroup},
	{"an instance is terminated, and again without an error", checkTerminate},
	{"one unknown instance spoils the whole termination", checkTerminateUnknown},
}

// service is the pair of services under test.
type service struct {
	groups *autoscaling.Client
	ec2    *ec2.Client

	// create makes a group of n instances in service.
	create func(t *testing.T, name string, n int) (ids []string)
	// alone makes an instance that is in no group.
	alone func(t *testing.T) (id string)
	// hook gives a group the lifecycle hook drain, for terminations, with a timeout in seconds.
	hook func(t *testing.T, group string, timeout int32)
	// suspend stops the group's process Launch.
	suspend func(t *testing.T, name string)
	// state is an instance's state in EC2.
	state func(t *testing.T, id string) string

	// except names the cases that are not asserted for this service, with the reason.
	except map[string]string
}

func (s *service) run(t *testing.T) {
	known := 0
	for _, c := range contract {
		if why, ok := s.except[c.name]; ok {
			known++
			t.Logf("not held to %q: %s", c.name, why)
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.check(t, s)
		})
	}
	if known != len(s.except) {
		t.Errorf("%d exceptions, of which %d are in the contract", len(s.except), known)
	}
}

func TestContract(t *testing.T) {
	t.Run("emulator", func(t *testing.T) {
		t.Parallel()
		s, _ := emulated(t)
		s.run(t)
	})
	t.Run("foreign emulator", func(t *testing.T) {
		t.Parallel()
		s := connect(startForeign(t))
		s.except = foreignDeviations
		s.prepareForeign(t)
		s.run(t)
	})
}

// emulated is the emulator, whose groups are made by its methods.
func emulated(t *testing.T) (*service, *asgemu.Server) {
	t.Helper()
	server := asgemu.Start(asgemu.Options{})
	t.Cleanup(server.Close)
	s := connect(server.URL)
	s.create = func(_ *testing.T, name string, n int) []string {
		ids := make([]string, n)
		for i := range ids {
			ids[i] = asgemu.NewInstanceID()
		}
		server.CreateGroup(name, ids...)
		return ids
	}
	s.alone = func(*testing.T) string {
		id := asgemu.NewInstanceID()
		server.CreateInstance(id)
		return id
	}
	s.hook = func(_ *testing.T, group string, timeout int32) {
		server.PutHook(group, asgemu.Hook{
			Name: "drain", Transition: asgemu.TerminateAt, Timeout: time.Duration(timeout) * time.Second, Default: asgemu.Abandon,
		})
	}
	s.suspend = func(_ *testing.T, name string) { server.Suspend(name, "Launch") }
	s.state = func(_ *testing.T, id string) string { i, _ := server.Instance(id); return i.State }
	return s, server
}

// connect returns the real SDK's clients without retries, so that every error is seen.
func connect(endpoint string) *service {
	options := []func(*middleware.Stack) error{awsfault.PlainBody}
	provider := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
	})
	return &service{
		groups: autoscaling.New(autoscaling.Options{
			BaseEndpoint: &endpoint, Region: region, Credentials: provider, Retryer: aws.NopRetryer{}, APIOptions: options,
		}),
		ec2: ec2.New(ec2.Options{BaseEndpoint: &endpoint, Region: region, Credentials: provider, Retryer: aws.NopRetryer{}, APIOptions: options}),
	}
}

const region = "eu-west-1"

func (s *service) detach(ctx context.Context, group string, ids ...string) error {
	_, err := s.groups.DetachInstances(ctx, &autoscaling.DetachInstancesInput{
		AutoScalingGroupName: &group, InstanceIds: ids, ShouldDecrementDesiredCapacity: aws.Bool(false),
	})
	return err
}

func (s *service) member(t *testing.T, id string) *types.AutoScalingInstanceDetails {
	t.Helper()
	out, err := s.groups.DescribeAutoScalingInstances(t.Context(), &autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: []string{id}})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.AutoScalingInstances) == 0 {
		return nil
	}
	return &out.AutoScalingInstances[0]
}

func (s *service) group(t *testing.T, name string) types.AutoScalingGroup {
	t.Helper()
	out, err := s.groups.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{name}})
	if err != nil || len(out.AutoScalingGroups) != 1 {
		t.Fatalf("describe group: %+v, %v", out, err)
	}
	return out.AutoScalingGroups[0]
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	if api, ok := errors.AsType[smithy.APIError](err); !ok || api.ErrorCode() != code {
		t.Errorf("got %v, want code %s", err, code)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func unknown(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = asgemu.NewInstanceID()
	}
	return ids
}

func checkDescribeInstances(t *testing.T, s *service) {
	ids := s.create(t, t.Name(), 2)
	out, err := s.groups.DescribeAutoScalingInstances(t.Context(), &autoscaling.DescribeAutoScalingInstancesInput{
		InstanceIds: append(unknown(1), ids[0], s.alone(t)),
	})
	if err != nil || len(out.AutoScalingInstances) != 1 {
		t.Fatalf("got %+v, %v; want one instance", out, err)
	}
	m := out.AutoScalingInstances[0]
	if *m.InstanceId != ids[0] || *m.AutoScalingGroupName != t.Name() || *m.LifecycleState != "InService" || *m.AvailabilityZone == "" {
		t.Errorf("got %s in %s, %s, %s", *m.InstanceId, *m.AutoScalingGroupName, *m.LifecycleState, *m.AvailabilityZone)
	}
}

func checkDescribeLimit(t *testing.T, s *service) {
	for n, code := range map[int]string{50: "", 51: "ValidationError"} {
		_, err := s.groups.DescribeAutoScalingInstances(t.Context(), &autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: unknown(n)})
		if code == "" && err != nil {
			t.Errorf("%d instances: %v", n, err)
		} else if code != "" {
			wantCode(t, err, code)
		}
	}
}

func checkDescribeGroups(t *testing.T, s *service) {
	ids := s.create(t, t.Name(), 3)
	g := s.group(t, t.Name())
	if *g.AutoScalingGroupName != t.Name() || *g.DesiredCapacity != 3 || len(g.Instances) != 3 || g.Status != nil || len(g.SuspendedProcesses) != 0 {
		t.Errorf("got %+v", g)
	}
	for _, i := range g.Instances {
		if !slices.Contains(ids, *i.InstanceId) || i.LifecycleState != types.LifecycleStateInService {
			t.Errorf("got instance %+v", i)
		}
	}
}

func checkGroupLimit(t *testing.T, s *service) {
	var names []string
	for i := range 51 {
		names = append(names, fmt.Sprintf("%s-%d", t.Name(), i))
	}
	_, err := s.groups.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: names[:50]})
	if err != nil {
		t.Error(err)
	}
	_, err = s.groups.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: names})
	wantCode(t, err, "ValidationError")
}

func checkNoGroupDescribed(t *testing.T, s *service) {
	out, err := s.groups.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{t.Name()}})
	if err != nil || len(out.AutoScalingGroups) != 0 {
		t.Errorf("got %+v, %v", out, err)
	}
}

func checkSuspended(t *testing.T, s *service) {
	s.create(t, t.Name(), 1)
	s.suspend(t, t.Name())
	g := s.group(t, t.Name())
	if len(g.SuspendedProcesses) != 1 || *g.SuspendedProcesses[0].ProcessName != "Launch" {
		t.Errorf("got %+v", g.SuspendedProcesses)
	}
}

func checkDetach(t *testing.T, s *service) {
	ids := s.create(t, t.Name(), 2)
	if err := s.detach(t.Context(), t.Name(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if m := s.member(t, ids[0]); m != nil && *m.LifecycleState != "Detaching" {
		t.Errorf("listed as %s", *m.LifecycleState)
	}
	eventually(t, "instance has left", func() bool { return s.member(t, ids[0]) == nil })
	if state := s.state(t, ids[0]); state != "running" {
		t.Errorf("detached instance is %s", state)
	}
	if m := s.member(t, ids[1]); m == nil || *m.LifecycleState != "InService" {
		t.Errorf("the other is %+v", m)
	}
}

func checkReplaced(t *testing.T, s *service) {
	ids := s.create(t, t.Name(), 3)
	if err := s.detach(t.Context(), t.Name(), ids[:2]...); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two others in service", func() bool {
		others := 0
		for _, i := range s.group(t, t.Name()).Instances {
			if !slices.Contains(ids, *i.InstanceId) && i.LifecycleState == types.LifecycleStateInService {
				others++
			}
		}
		return others == 2
	})
	if g := s.group(t, t.Name()); *g.DesiredCapacity != 3 {
		t.Errorf("desired capacity is %d, want 3 as before", *g.DesiredCapacity)
	}
}

func checkDetachOnce(t *testing.T, s *service) {
	ids := s.create(t, t.Name(), 2)
	if err := s.detach(t.Context(), t.Name(), ids[0]); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.detach(t.Context(), t.Name(), ids[0]), "ValidationError") // on its way out
	eventually(t, "instance has left", func() bool { return s.member(t, ids[0]) == nil })
	wantCode(t, s.detach(t.Context(), t.Name(), ids[0]), "ValidationError") // out
}

func checkDetachLimit(t *testing.T, s *service) {
	ids := s.create(t, t.Name(), 21)
	wantCode(t, s.detach(t.Context(), t.Name(), ids...), "ValidationError")
	if err := s.detach(t.Context(), t.Name(), ids[:20]...); err != nil {
		t.Error(err)
	}
}

func checkBadID(t *testing.T, s *service) {
	ids := s.create(t, t.Name(), 2)
	wantCode(t, s.detach(t.Context(), t.Name(), ids[0], s.alone(t), ids[1]), "ValidationError")
	for _, id := range ids {
		if m := s.member(t, id); m == nil || *m.LifecycleState != "InService" {
			t.Errorf("instance of the refused call is %+v", m)
		}
	}
}

func checkNoGroup(t *testing.T, s *service) {
	wantCode(t, s.detach(t.Context(), t.Name(), s.alone(t)), "ValidationError")
}

func checkTerminate(t *testing.T, s *service) {
	id := s.alone(t)
	for range 2 {
		if _, err := s.ec2.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{id}}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "instance is terminated", func() bool { return s.state(t, id) == "terminated" })
}

func checkTerminateUnknown(t *testing.T, s *service) {
	id := s.alone(t)
	_, err := s.ec2.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: append(unknown(1), id)})
	wantCode(t, err, "InvalidInstanceID.NotFound")
	if state := s.state(t, id); state != "running" {
		t.Errorf("the other instance of the refused call is %s", state)
	}
}
