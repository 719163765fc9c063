package asgemu_test

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"

	"spot-handler/e2e/asgemu"
)

// With Capacity Rebalancing a group launches a replacement on the recommendation, exceeds its desired size until that is
// in service, and then ends the instance. It launches nothing for an instance that leaves meanwhile.
func TestCapacityRebalancing(t *testing.T) {
	for name, c := range map[string]struct {
		rebalances, detach bool
		launched           int
		left               string // the instance's state in EC2 at the end
	}{
		"without":             {false, false, 0, asgemu.Running},
		"with":                {true, false, 1, asgemu.Terminated},
		"the instance leaves": {true, true, 1, asgemu.Running},
		"without, it leaves":  {false, true, 1, asgemu.Running},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := asgemu.Start(asgemu.Options{Boot: 200 * time.Millisecond})
			t.Cleanup(server.Close)
			s := connect(server.URL)
			id := asgemu.NewInstanceID()
			server.CreateGroup("workers", id)
			if c.rebalances {
				server.RebalanceCapacity("workers")
			}
			server.Recommend(id)
			if c.detach {
				_, err := s.groups.DetachInstances(t.Context(), &autoscaling.DetachInstancesInput{
					AutoScalingGroupName: aws.String("workers"), InstanceIds: []string{id}, ShouldDecrementDesiredCapacity: aws.Bool(false),
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			out, err := s.groups.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{})
			if err != nil {
				t.Fatal(err)
			}
			if g := out.AutoScalingGroups[0]; *g.DesiredCapacity != 1 || aws.ToBool(g.CapacityRebalance) != c.rebalances {
				t.Errorf("desired %d, Capacity Rebalancing %v", *g.DesiredCapacity, aws.ToBool(g.CapacityRebalance))
			}
			settled := func() bool {
				i, _ := server.Instance(id)
				members := server.Members("workers")
				return i.State == c.left && len(members) == 1 && members[0].Lifecycle == asgemu.InService
			}
			for deadline := time.Now().Add(10 * time.Second); !settled(); <-time.After(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					i, _ := server.Instance(id)
					t.Fatalf("instance %s, members %v", i, server.Members("workers"))
				}
			}
			if n := server.Launched("workers"); n != c.launched {
				t.Errorf("%d launched, want %d", n, c.launched)
			}
		})
	}
}
