package asgemu

import (
	"encoding/xml"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// The limits of one call. What the services say beyond a limit is from reports by people who have met it.
const (
	describeLimit = 50 // https://github.com/hjacobs/kube-aws-autoscaler/issues/25
	groupLimit    = 50 // https://github.com/LeanerCloud/AutoSpotting/issues/199
	detachLimit   = 20 // https://github.com/reproio/ecs_deploy/pull/39
)

// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingInstances.html
func (s *Server) describeInstances(form url.Values, ids []string) (any, *apiError) {
	if len(ids) > describeLimit {
		return nil, invalid("The number of instance ids that may be passed in is limited to %d", describeLimit)
	}
	type member struct {
		InstanceID           string `xml:"InstanceId"`
		AutoScalingGroupName string
		AvailabilityZone     string
		LifecycleState       string
	}
	var members []member
	for _, g := range s.groups {
		for _, i := range g.members {
			if len(ids) == 0 || slices.Contains(ids, i.ID) {
				members = append(members, member{i.ID, g.name, Zone, i.Lifecycle})
			}
		}
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.InstanceID, b.InstanceID) })
	return struct {
		Members []member `xml:"AutoScalingInstances>member"`
	}{members}, nil
}

// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingGroups.html
func (s *Server) describeGroups(form url.Values, names []string) (any, *apiError) {
	if len(names) > groupLimit {
		return nil, invalid("The number of group names that may be passed in is limited to %d.", groupLimit)
	}
	type process struct{ ProcessName string }
	type member struct {
		InstanceID       string `xml:"InstanceId"`
		AvailabilityZone string
		LifecycleState   string
	}
	type description struct {
		AutoScalingGroupName string
		MaxSize              int
		DesiredCapacity      int
		CapacityRebalance    bool
		Instances            []member  `xml:"Instances>member"`
		SuspendedProcesses   []process `xml:"SuspendedProcesses>member"`
	}
	var rows []description
	for _, g := range s.groups {
		if len(names) > 0 && !slices.Contains(names, g.name) {
			continue
		}
		d := description{
			AutoScalingGroupName: g.name,
			MaxSize:              g.max,
			DesiredCapacity:      g.desired,
			CapacityRebalance:    g.rebalances,
		}
		for _, i := range g.members {
			d.Instances = append(d.Instances, member{i.ID, Zone, i.Lifecycle})
		}
		for _, p := range g.suspended {
			d.SuspendedProcesses = append(d.SuspendedProcesses, process{p})
		}
		rows = append(rows, d)
	}
	slices.SortFunc(rows, func(a, b description) int { return strings.Compare(a.AutoScalingGroupName, b.AutoScalingGroupName) })
	return struct {
		Groups []description `xml:"AutoScalingGroups>member"`
	}{rows}, nil
}

// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DetachInstances.html
func (s *Server) detachInstances(form url.Values, ids []string) (any, *apiError) {
	name := form.Get("AutoScalingGroupName")
	decrement, bad := strconv.ParseBool(form.Get("ShouldDecrementDesiredCapacity"))
	switch {
	case name == "":
		return nil, invalid("1 validation error detected: Value null at 'autoScalingGroupName' failed to satisfy constraint: Member must not be null")
	case bad != nil:
		return nil, invalid("1 validation error detected: Value null at 'shouldDecrementDesiredCapacity' failed to satisfy constraint: Member must not be null")
	case len(ids) > detachLimit:
		return nil, invalid("List exceeds the maximum number of instances to detach. Please retry your request with fewer instances.")
	}
	g, err := s.lookup(name)
	if err != nil {
		return nil, err
	}
	return struct{}{}, s.detach(g, ids, decrement)
}

// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html
func (s *Server) terminateInstances(_ url.Values, ids []string) (any, *apiError) {
	if len(ids) == 0 {
		return nil, &apiError{400, "MissingParameter", "The request must contain the parameter InstanceId"}
	}
	return struct {
		XMLName   xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ TerminateInstancesResponse"`
		RequestID string   `xml:"requestId"`
	}{RequestID: requestID()}, s.terminate(ids)
}
