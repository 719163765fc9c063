package asgemu

import (
	"encoding/xml"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// timestamp is how Auto Scaling writes a time.
const timestamp = "2006-01-02T15:04:05.000Z"

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
		HealthStatus         string
		ProtectedFromScaleIn bool
		InstanceType         string
	}
	var members []member
	for _, g := range s.groups {
		for _, i := range g.members {
			if len(ids) == 0 || slices.Contains(ids, i.ID) {
				members = append(members, member{i.ID, g.name, Zone, i.Lifecycle, "HEALTHY", false, "m5.large"})
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
	type process struct{ ProcessName, SuspensionReason string }
	type member struct {
		InstanceID           string `xml:"InstanceId"`
		AvailabilityZone     string
		LifecycleState       string
		HealthStatus         string
		ProtectedFromScaleIn bool
	}
	type description struct {
		AutoScalingGroupName   string
		AutoScalingGroupARN    string
		MinSize                int
		MaxSize                int
		DesiredCapacity        int
		DefaultCooldown        int
		AvailabilityZones      []string `xml:"AvailabilityZones>member"`
		HealthCheckType        string
		HealthCheckGracePeriod int
		CapacityRebalance      bool
		Instances              []member  `xml:"Instances>member"`
		SuspendedProcesses     []process `xml:"SuspendedProcesses>member"`
		CreatedTime            string
	}
	var rows []description
	for _, g := range s.groups {
		if len(names) > 0 && !slices.Contains(names, g.name) {
			continue
		}
		d := description{
			AutoScalingGroupName: g.name,
			AutoScalingGroupARN:  "arn:aws:autoscaling:eu-west-1:123456789012:autoScalingGroup:" + requestID() + ":autoScalingGroupName/" + g.name,
			MaxSize:              g.max,
			DesiredCapacity:      g.desired,
			DefaultCooldown:      300,
			AvailabilityZones:    []string{Zone},
			HealthCheckType:      "EC2",
			CapacityRebalance:    g.rebalances,
			CreatedTime:          time.Now().UTC().Format(timestamp),
		}
		for _, i := range g.members {
			d.Instances = append(d.Instances, member{i.ID, Zone, i.Lifecycle, "Healthy", false})
		}
		for _, p := range g.suspended {
			d.SuspendedProcesses = append(d.SuspendedProcesses, process{p, "User suspended at 2026-01-01T00:00:00Z"})
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
	type activity struct {
		ActivityID           string `xml:"ActivityId"`
		AutoScalingGroupName string
		Description          string
		Cause                string
		StartTime            string
		StatusCode           string
		Progress             int
	}
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
	if err := s.detach(g, ids, decrement); err != nil {
		return nil, err
	}
	now := time.Now().UTC().Format(timestamp)
	var activities []activity
	for _, id := range ids {
		activities = append(activities, activity{
			ActivityID:           requestID(),
			AutoScalingGroupName: name,
			Description:          "Detaching EC2 instance: " + id,
			Cause:                fmt.Sprintf("At %s instance %s was detached in response to a user request.", now, id),
			StartTime:            now,
			StatusCode:           "InProgress",
			Progress:             50,
		})
	}
	return struct {
		Activities []activity `xml:"Activities>member"`
	}{activities}, nil
}

// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html
func (s *Server) terminateInstances(_ url.Values, ids []string) (any, *apiError) {
	if len(ids) == 0 {
		return nil, &apiError{400, "MissingParameter", "The request must contain the parameter InstanceId"}
	}
	type state struct {
		Code int    `xml:"code"`
		Name string `xml:"name"`
	}
	type item struct {
		InstanceID string `xml:"instanceId"`
		Current    state  `xml:"currentState"`
		Previous   state  `xml:"previousState"`
	}
	code := map[string]int{Running: 16, ShuttingDown: 32, Terminated: 48}
	var items []item
	for _, id := range ids {
		if i := s.instances[id]; i != nil {
			items = append(items, item{InstanceID: id, Previous: state{code[i.State], i.State}})
		}
	}
	if err := s.terminate(ids); err != nil {
		return nil, err
	}
	for k := range items {
		i := s.instances[items[k].InstanceID]
		items[k].Current = state{code[i.State], i.State}
	}
	return struct {
		XMLName   xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ TerminateInstancesResponse"`
		RequestID string   `xml:"requestId"`
		Items     []item   `xml:"instancesSet>item"`
	}{RequestID: requestID(), Items: items}, nil
}
