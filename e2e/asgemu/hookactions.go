package asgemu

import (
	"net/url"
	"slices"
)

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
			list = append(list, member{
				LifecycleHookName:    h.Name,
				AutoScalingGroupName: g.name,
				LifecycleTransition:  h.Transition,
				HeartbeatTimeout:     int(h.Timeout.Seconds()),
				GlobalTimeout:        int(h.global().Seconds()),
				DefaultResult:        h.Default,
			})
		}
	}
	return struct {
		Hooks []member `xml:"LifecycleHooks>member"`
	}{list}, nil
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
	return struct{}{}, nil
}

// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_RecordLifecycleActionHeartbeat.html
func (s *Server) recordLifecycleActionHeartbeat(form url.Values, _ []string) (any, *apiError) {
	w, err := s.waitOf(form)
	if err != nil {
		return nil, err
	}
	s.heartbeat(w)
	return struct{}{}, nil
}

func (s *Server) waitOf(form url.Values) (*wait, *apiError) {
	return s.active(form.Get("AutoScalingGroupName"), form.Get("LifecycleHookName"), form.Get("LifecycleActionToken"), form.Get("InstanceId"))
}
