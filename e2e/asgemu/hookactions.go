package asgemu

import (
	"encoding/xml"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
func (s *Server) putLifecycleHook(form url.Values, _ []string) (any, *apiError) {
	g, err := s.lookup(form.Get("AutoScalingGroupName"))
	if err != nil {
		return nil, err
	}
	timeout, bad := time.Hour, error(nil)
	if text := form.Get("HeartbeatTimeout"); text != "" {
		var n int
		n, bad = strconv.Atoi(text)
		timeout = time.Duration(n) * time.Second
	}
	h := Hook{Name: form.Get("LifecycleHookName"), Transition: form.Get("LifecycleTransition"), Timeout: timeout, Default: Abandon}
	if result := form.Get("DefaultResult"); result != "" {
		h.Default = result
	}
	switch {
	case h.Name == "":
		return nil, invalid("1 validation error detected: Value null at 'lifecycleHookName' failed to satisfy constraint: Member must not be null")
	case bad != nil || timeout < 30*time.Second || timeout > 2*time.Hour:
		return nil, invalid("Heartbeat timeout must be between 30 and 7200 seconds")
	case h.Transition != Launching && h.Transition != TerminateAt:
		return nil, invalid("Invalid lifecycle transition")
	case h.Default != Continue && h.Default != Abandon:
		return nil, invalid("Default result must be either CONTINUE or ABANDON")
	}
	s.putHook(g, h)
	return struct {
		XMLName  xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ PutLifecycleHookResponse"`
		Result   struct{} `xml:"PutLifecycleHookResult"`
		Metadata metadata `xml:"ResponseMetadata"`
	}{Metadata: metadata{requestID()}}, nil
}

// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeLifecycleHooks.html
func (s *Server) describeLifecycleHooks(form url.Values, names []string) (any, *apiError) {
	g, err := s.lookup(form.Get("AutoScalingGroupName"))
	if err != nil {
		return nil, err
	}
	type member struct {
		LifecycleHookName    string
		AutoScalingGroupName string
		LifecycleTransition  string
		HeartbeatTimeout     int
		GlobalTimeout        int
		DefaultResult        string
	}
	var list []member
	for _, h := range g.hooks {
		if len(names) == 0 || slices.Contains(names, h.Name) {
			list = append(list, member{h.Name, g.name, h.Transition, int(h.Timeout.Seconds()), int(h.global().Seconds()), h.Default})
		}
	}
	return struct {
		XMLName  xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ DescribeLifecycleHooksResponse"`
		Hooks    []member `xml:"DescribeLifecycleHooksResult>LifecycleHooks>member"`
		Metadata metadata `xml:"ResponseMetadata"`
	}{Hooks: list, Metadata: metadata{requestID()}}, nil
}

// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CompleteLifecycleAction.html
func (s *Server) completeLifecycleAction(form url.Values, _ []string) (any, *apiError) {
	result := form.Get("LifecycleActionResult")
	if result != Continue && result != Abandon {
		return nil, invalid("The result of a lifecycle action must be either CONTINUE or ABANDON")
	}
	w, err := s.waitOf(form)
	if err != nil {
		return nil, err
	}
	s.finish(w, result)
	return struct {
		XMLName  xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ CompleteLifecycleActionResponse"`
		Result   struct{} `xml:"CompleteLifecycleActionResult"`
		Metadata metadata `xml:"ResponseMetadata"`
	}{Metadata: metadata{requestID()}}, nil
}

// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_RecordLifecycleActionHeartbeat.html
func (s *Server) recordLifecycleActionHeartbeat(form url.Values, _ []string) (any, *apiError) {
	w, err := s.waitOf(form)
	if err != nil {
		return nil, err
	}
	s.heartbeat(w)
	return struct {
		XMLName  xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ RecordLifecycleActionHeartbeatResponse"`
		Result   struct{} `xml:"RecordLifecycleActionHeartbeatResult"`
		Metadata metadata `xml:"ResponseMetadata"`
	}{Metadata: metadata{requestID()}}, nil
}

func (s *Server) waitOf(form url.Values) (*wait, *apiError) {
	return s.active(form.Get("AutoScalingGroupName"), form.Get("LifecycleHookName"), form.Get("LifecycleActionToken"), form.Get("InstanceId"))
}

// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_TerminateInstanceInAutoScalingGroup.html
func (s *Server) terminateInGroup(form url.Values, _ []string) (any, *apiError) {
	id := form.Get("InstanceId")
	i := s.instances[id]
	if i == nil || i.Group == "" {
		return nil, invalid("Instance Id not found - No managed instance found for instance ID %s", id)
	}
	decrement, bad := strconv.ParseBool(form.Get("ShouldDecrementDesiredCapacity"))
	if bad != nil {
		return nil, invalid("1 validation error detected: Value null at 'shouldDecrementDesiredCapacity' failed to satisfy constraint: Member must not be null")
	}
	g := s.groups[i.Group]
	if decrement && g.desired <= g.min {
		return nil, invalid("Currently, desiredSize equals minSize (%d). Terminating instance without replacement will violate group's min size constraint.", g.min)
	}
	if decrement {
		g.desired--
	}
	s.endMember(i)
	type activity struct {
		ActivityID           string `xml:"ActivityId"`
		AutoScalingGroupName string
		Description          string
		Cause                string
		StartTime            string
		StatusCode           string
		Progress             int
	}
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	return struct {
		XMLName  xml.Name `xml:"http://autoscaling.amazonaws.com/doc/2011-01-01/ TerminateInstanceInAutoScalingGroupResponse"`
		Activity activity `xml:"TerminateInstanceInAutoScalingGroupResult>Activity"`
		Metadata metadata `xml:"ResponseMetadata"`
	}{
		Activity: activity{
			requestID(), g.name, "Terminating EC2 instance: " + id, "At " + now + " instance " + id + " was taken out of service in response to a user request.",
			now, "InProgress", 0,
		}, Metadata: metadata{requestID()},
	}, nil
}
