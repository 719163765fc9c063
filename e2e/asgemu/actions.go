package asgemu

import (
	"encoding/xml"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// The limits of one call. What the services say beyond a limit is from reports by people who have met it.
const (
	describeLimit = 50 // https://github.com/hjacobs/kube-aws-autoscaler/issues/25
	groupLimit    = 50 // https://github.com/LeanerCloud/AutoSpotting/issues/199
	detachLimit   = 20 // https://github.com/reproio/ecs_deploy/pull/39
)

type metadata struct {
	RequestID string `xml:"RequestId"`
}

// page cuts the page that the request asks for out of n rows.
func page(form url.Values, n, size int) (from, to int, next string, err *apiError) {
	if text := form.Get("MaxRecords"); text != "" {
		asked, bad := strconv.Atoi(text)
		if bad != nil || asked < 1 {
			return 0, 0, "", invalid("MaxRecords must be a number from 1")
		}
		size = min(size, asked)
	}
	if token := form.Get("NextToken"); token != "" {
		var bad error
		if from, bad = strconv.Atoi(token); bad != nil || from > n {
			return 0, 0, "", &apiError{400, "InvalidNextToken", "The NextToken value is not valid."}
		}
	}
	if to = min(n, from+size); to < n {
		next = strconv.Itoa(to)
	}
	return from, to, next, nil
}

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
	slices.SortFunc(members, func(a, b member) int {
		if a.InstanceID < b.InstanceID {
			return -1
		}
		return 1
	})
	from, to, next, err := page(form, len(members), describeLimit)
	if err != nil {
		return nil, err
	}
	return struct {
		XMLName  xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ DescribeAutoScalingInstancesResponse"`
		Members  []member `xml:"DescribeAutoScalingInstancesResult>AutoScalingInstances>member"`
		Next     string   `xml:"DescribeAutoScalingInstancesResult>NextToken,omitempty"`
		Metadata metadata `xml:"ResponseMetadata"`
	}{Members: members[from:to], Next: next, Metadata: metadata{requestID()}}, nil
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
			AutoScalingGroupName: g.name, MinSize: g.min, MaxSize: g.max, DesiredCapacity: g.desired, DefaultCooldown: 300,
			AutoScalingGroupARN: "arn:aws:autoscaling:eu-west-1:123456789012:autoScalingGroup:" + requestID() + ":autoScalingGroupName/" + g.name,
			AvailabilityZones:   []string{Zone}, HealthCheckType: "EC2", CapacityRebalance: g.rebalances, CreatedTime: time.Now().UTC().Format("2006-01-02T15:04:05.000Z"),
		}
		for _, i := range g.members {
			d.Instances = append(d.Instances, member{i.ID, Zone, i.Lifecycle, "Healthy", false})
		}
		for _, p := range g.suspended {
			d.SuspendedProcesses = append(d.SuspendedProcesses, process{p, "User suspended at 2026-01-01T00:00:00Z"})
		}
		rows = append(rows, d)
	}
	slices.SortFunc(rows, func(a, b description) int {
		if a.AutoScalingGroupName < b.AutoScalingGroupName {
			return -1
		}
		return 1
	})
	from, to, next, err := page(form, len(rows), groupLimit)
	if err != nil {
		return nil, err
	}
	return struct {
		XMLName  xml.Name      `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ DescribeAutoScalingGroupsResponse"`
		Groups   []description `xml:"DescribeAutoScalingGroupsResult>AutoScalingGroups>member"`
		Next     string        `xml:"DescribeAutoScalingGroupsResult>NextToken,omitempty"`
		Metadata metadata      `xml:"ResponseMetadata"`
	}{Groups: rows[from:to], Next: next, Metadata: metadata{requestID()}}, nil
}

// activity is what a group does, as the group reports it.
type activity struct {
	ActivityID           string `xml:"ActivityId"`
	AutoScalingGroupName string
	Description          string
	Cause                string
	StartTime            string
	StatusCode           string
	Progress             int
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
	if err := s.detach(g, ids, decrement); err != nil {
		return nil, err
	}
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	var activities []activity
	for _, id := range ids {
		activities = append(activities, activity{
			requestID(), name, "Detaching EC2 instance: " + id,
			fmt.Sprintf("At %s instance %s was detached in response to a user request.", now, id), now, "InProgress", 50,
		})
	}
	return struct {
		XMLName    xml.Name   `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ DetachInstancesResponse"`
		Activities []activity `xml:"DetachInstancesResult>Activities>member"`
		Metadata   metadata   `xml:"ResponseMetadata"`
	}{Activities: activities, Metadata: metadata{requestID()}}, nil
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
