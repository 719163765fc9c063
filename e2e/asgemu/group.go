package asgemu

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// The lifecycle states of an instance in its group, as far as they are emulated.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html
const (
	Pending     = "Pending"
	InService   = "InService"
	Detaching   = "Detaching"
	Terminating = "Terminating"
)

// The states of an instance in EC2.
const (
	Running      = "running"
	ShuttingDown = "shutting-down"
	Terminated   = "terminated"
)

// Zone is where all instances are.
const Zone = "eu-west-1a"

// Instance is an instance as it was at some moment.
type Instance struct {
	ID string
	// Group and Lifecycle are empty for an instance in no group.
	Group, Lifecycle string
	// State is the instance's state in EC2.
	State string
	// Launched: its group launched it, as opposed to having it from the start.
	Launched bool
}

type instance struct{ Instance }

type group struct {
	name         string
	max, desired int
	suspended    []string
	rebalances   bool        // it has Capacity Rebalancing
	members      []*instance // in the order in which they came
	launched     int
	hooks        []Hook
}

// NewInstanceID returns an id of the usual form.
func NewInstanceID() string {
	return "i-" + hex.EncodeToString([]byte(rand.Text()))[:17]
}

// CreateGroup makes a group of instances that are in service. Its desired size is their number, and its maximum
// size twice that. It panics if the name or an instance is taken.
func (s *Server) CreateGroup(name string, ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.groups[name] != nil {
		panic("asgemu: group " + name + " exists")
	}
	g := &group{name: name, max: 2 * len(ids), desired: len(ids)}
	s.groups[name] = g
	for _, id := range ids {
		if s.instances[id] != nil {
			panic("asgemu: instance " + id + " exists")
		}
		i := &instance{Instance{ID: id, Group: name, Lifecycle: InService, State: Running}}
		s.instances[id] = i
		g.members = append(g.members, i)
	}
}

// CreateInstance makes an instance that is in no group.
func (s *Server) CreateInstance(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[id] = &instance{Instance{ID: id, State: Running}}
}

// Suspend stops processes of the group: Launch, and Terminate after Capacity Rebalancing.
func (s *Server) Suspend(name string, processes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[name].suspended = processes
}

// SetDesired changes the size that the group keeps.
func (s *Server) SetDesired(name string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[name]
	g.desired, g.max = n, max(g.max, n)
	s.keep(g)
}

// Instance returns the instance; false if there is none with that id.
func (s *Server) Instance(id string) (Instance, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.instances[id]; i != nil {
		return i.Instance, true
	}
	return Instance{}, false
}

// Members returns the members of the group.
func (s *Server) Members(name string) []Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Instance
	for _, i := range s.groups[name].members {
		list = append(list, i.Instance)
	}
	return list
}

// Launched returns how many instances the group has launched in total.
func (s *Server) Launched(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.groups[name].launched
}

// keep launches the instances that the group lacks. The caller holds the mutex.
func (s *Server) keep(g *group) {
	if slices.Contains(g.suspended, "Launch") {
		return
	}
	counted := 0
	for _, i := range g.members {
		if i.Lifecycle == Pending || i.Lifecycle == PendingWait || i.Lifecycle == InService {
			counted++
		}
	}
	for ; counted < min(g.desired, g.max); counted++ {
		s.launch(g, nil)
	}
}

// launch launches an instance. If it is the replacement of another, the group ends that one once the replacement
// is in service. The caller holds the mutex.
func (s *Server) launch(g *group, replaces *instance) {
	i := &instance{Instance{ID: NewInstanceID(), Group: g.name, Lifecycle: Pending, State: Running, Launched: true}}
	s.instances[i.ID] = i
	g.members = append(g.members, i)
	g.launched++
	s.after(s.opts.Boot, func() {
		if i.Lifecycle != Pending {
			return
		}
		i.Lifecycle = InService
		if s.begin(i, Launching) {
			i.Lifecycle = PendingWait // it boots all the same
		}
		if s.opts.Booted != nil {
			go s.opts.Booted(i.Instance)
		}
		if replaces != nil && replaces.Group == g.name && replaces.Lifecycle == InService && !slices.Contains(g.suspended, "Terminate") {
			s.endMember(replaces)
		}
	})
}

// RebalanceCapacity turns Capacity Rebalancing on, as EKS does for the groups of its managed spot node groups.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-capacity-rebalancing.html
func (s *Server) RebalanceCapacity(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[name].rebalances = true
}

// Recommend is EC2's rebalance recommendation for an instance, as its group receives it. With Capacity Rebalancing
// the group launches a replacement on top of its desired size, and ends the instance once that is in service,
// if it is still a member then.
func (s *Server) Recommend(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.instances[id]
	g := s.groups[i.Group]
	if g == nil || !g.rebalances || i.Lifecycle != InService || slices.Contains(g.suspended, "Launch") {
		return
	}
	s.launch(g, i)
}

// Interrupt has EC2 end an instance. Its group launches another.
func (s *Server) Interrupt(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.terminate([]string{id}) // it is there
}

// detach takes instances out of the group, all or none.
func (s *Server) detach(g *group, ids []string, decrement bool) *apiError {
	for _, id := range ids {
		k := slices.IndexFunc(g.members, func(i *instance) bool { return i.ID == id })
		switch {
		case k < 0:
			return invalid("The instance %s is not part of Auto Scaling group %s.", id, g.name)
		case g.members[k].Lifecycle != InService:
			return invalid("The instance %s is not in InService or Standby.", id)
		}
	}
	if decrement && g.desired < len(ids) {
		return invalid("You cannot detach instances as it would bring the Auto Scaling group's size below its minimum of 0.")
	}
	if decrement {
		g.desired -= len(ids)
	}
	for _, id := range ids {
		i := s.instances[id]
		i.Lifecycle = Detaching
		s.after(s.opts.Leave, func() { s.remove(i) })
	}
	s.keep(g)
	return nil
}

// remove takes an instance out of its group's list.
func (s *Server) remove(i *instance) {
	g := s.groups[i.Group]
	if g == nil {
		return
	}
	g.members = slices.DeleteFunc(g.members, func(m *instance) bool { return m == i })
	i.Group, i.Lifecycle = "", ""
	s.keep(g)
}

// terminate ends instances, all or none. A group replaces its own.
func (s *Server) terminate(ids []string) *apiError {
	var missing []string
	for _, id := range ids {
		if s.instances[id] == nil {
			missing = append(missing, id)
		}
	}
	if len(missing) > 0 {
		return noInstances(missing)
	}
	for _, id := range ids {
		if i := s.instances[id]; i.State == Running {
			s.end(i)
		}
	}
	return nil
}

// end ends an instance in EC2.
func (s *Server) end(i *instance) {
	i.State = ShuttingDown
	if g := s.groups[i.Group]; g != nil {
		if !strings.HasPrefix(i.Lifecycle, Terminating) {
			i.Lifecycle = Terminating
		}
		s.keep(g)
	}
	s.after(s.opts.Leave, func() {
		i.State = Terminated
		s.remove(i)
		if s.opts.Ended != nil {
			go s.opts.Ended(i.Instance)
		}
	})
}

// lookup returns the group of that name.
func (s *Server) lookup(name string) (*group, *apiError) {
	if g := s.groups[name]; g != nil {
		return g, nil
	}
	return nil, invalid("AutoScalingGroup name not found - AutoScalingGroup %s not found", name)
}

func (i Instance) String() string {
	return fmt.Sprintf("%s %s, in group %q %s", i.ID, i.State, i.Group, i.Lifecycle)
}
