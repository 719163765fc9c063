package asgemu

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// The lifecycle states in which a group waits at a hook, or proceeds after it.
const (
	PendingWait        = "Pending:Wait"
	TerminatingWait    = "Terminating:Wait"
	TerminatingProceed = "Terminating:Proceed"
)

// The transitions that can have a hook.
const (
	Launching   = "autoscaling:EC2_INSTANCE_LAUNCHING"
	TerminateAt = "autoscaling:EC2_INSTANCE_TERMINATING"
)

// The results of a lifecycle action.
const (
	Continue = "CONTINUE"
	Abandon  = "ABANDON"
)

// Hook is a lifecycle hook of a group. Its Timeout may be less than AWS allows: whatever a test has time for.
type Hook struct {
	Name, Transition string
	Timeout          time.Duration
	Global           time.Duration // the longest wait, whatever the heartbeats; zero is what AWS allows
	Default          string        // result if nobody completes it: Continue or Abandon
}

// global: AWS allows a hundred times the timeout, and at most two days.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LifecycleHook.html
func (h Hook) global() time.Duration { return cmp.Or(h.Global, min(48*time.Hour, 100*h.Timeout)) }

// Wait is one wait of a group at a hook, a lifecycle action, as it was at some moment.
type Wait struct {
	Group, Hook, Transition, Instance, Token string

	Since, Until time.Time // Until moves with every heartbeat
	Heartbeats   int
	Result       string // of whoever completed it; the hook's default after its timeout; empty while it lasts
	TimedOut     bool
}

type wait struct {
	Wait
	hook Hook
}

// PutHook gives a group a hook, or changes it.
func (s *Server) PutHook(group string, h Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[group]
	g.hooks = append(slices.DeleteFunc(g.hooks, func(o Hook) bool { return o.Name == h.Name }), h)
}

// Shrink makes a group end an instance that it does not want to replace, as it does when it scales in.
func (s *Server) Shrink(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.instances[id]
	s.groups[i.Group].desired--
	s.endMember(i)
}

// Waits returns the waits for an instance, including those that are over, in the order in which they began.
func (s *Server) Waits(instance string) []Wait {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Wait
	for _, w := range s.waits {
		if w.Instance == instance {
			list = append(list, w.Wait)
		}
	}
	return list
}

// begin makes the group wait at all its hooks for a transition of an instance, and reports whether there are any.
func (s *Server) begin(i *instance, transition string) bool {
	found := false
	for _, h := range s.groups[i.Group].hooks {
		if h.Transition != transition {
			continue
		}
		found = true
		now := time.Now()
		w := &wait{Wait{Group: i.Group, Hook: h.Name, Transition: transition, Instance: i.ID, Token: requestID(), Since: now, Until: now.Add(h.Timeout)}, h}
		s.waits = append(s.waits, w)
		s.expire(w)
		if s.opts.Waiting != nil {
			go s.opts.Waiting(w.Wait)
		}
	}
	return found
}

// expire ends a wait when its time has run out.
func (s *Server) expire(w *wait) {
	s.after(time.Until(w.Until), func() {
		switch {
		case w.Result != "":
		case time.Now().Before(w.Until): // there was a heartbeat
			s.expire(w)
		default:
			w.TimedOut = true
			s.finish(w, w.hook.Default)
		}
	})
}

// finish ends a wait, and the transition along with the last one. Abandon ends the others too.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
func (s *Server) finish(w *wait, result string) {
	w.Result = result
	for _, o := range s.waits {
		if o.Instance != w.Instance || o.Transition != w.Transition || o.Result != "" {
			continue
		}
		if result == Continue {
			return // the group waits for that one
		}
		o.Result = Abandon
	}
	i := s.instances[w.Instance]
	switch {
	case w.Transition == TerminateAt:
		i.Lifecycle = TerminatingProceed
		s.end(i)
	case result == Continue:
		i.Lifecycle = InService
	default:
		s.endMember(i)
	}
}

// endMember ends a member of a group, after its hooks.
func (s *Server) endMember(i *instance) {
	launching := strings.HasPrefix(i.Lifecycle, Pending)
	i.Lifecycle = TerminatingWait
	if launching || !s.begin(i, TerminateAt) {
		i.Lifecycle = Terminating
		s.end(i)
	}
	s.keep(s.groups[i.Group])
}

// heartbeat makes the group wait for the whole timeout again.
func (s *Server) heartbeat(w *wait) {
	w.Heartbeats++
	w.Until = time.Now().Add(w.hook.Timeout)
	if last := w.Since.Add(w.hook.global()); w.Until.After(last) {
		w.Until = last
	}
}

// active finds a wait that is not over.
func (s *Server) active(group, hook, token, instance string) (*wait, *apiError) {
	if _, err := s.lookup(group); err != nil {
		return nil, err
	}
	for _, w := range s.waits {
		if w.Group == group && w.Hook == hook && w.Result == "" && (token == "" || w.Token == token) && (token != "" || w.Instance == instance) {
			return w, nil
		}
	}
	// As people who have met it report, such as
	// https://github.com/spacelift-io/terraform-aws-spacelift-workerpool-on-ec2/pull/197
	if token != "" {
		return nil, invalid("No active Lifecycle Action found with token %s", token)
	}
	return nil, invalid("No active Lifecycle Action found with instance ID %s", instance)
}
