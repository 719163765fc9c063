package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// Survey says what a node's drain would begin with, from one reading of the cluster. It is a [Fleet] that is only
// asked, and whose requests are never sent: it plans like a process that takes over at this moment.
type Survey struct {
	fleet *Fleet
	node  string
	now   time.Time
}

// NewSurvey reads what a Fleet that looks at the node asks for, until it asks for nothing more. For each subject, read
// returns the events that show all that there is; if there are none, the subject stays unknown. The first error ends
// that: the survey then knows what was read before.
func NewSurvey(now time.Time, policy Policy, node string, in NodeState, read func(Subject) ([]Event, error)) (*Survey, error) {
	s := &Survey{fleet: NewFleet(policy, 0, 0), node: node, now: now}
	s.fleet.Apply(now, Set{node, Wanted{in, Look}})
	// A Fleet takes a while to count the pods of Deployments. Nobody has to wait for that here: the clock is moved
	// forward instead, no further than a first plan would wait.
	for until := now.Add(lookFor); ; {
		todo := s.fleet.Next(s.now)
		for _, subject := range slices.Concat(todo.Watch, todo.LookUp) {
			shown, err := read(subject)
			if err != nil {
				return s, err
			}
			for _, e := range shown {
				s.fleet.Apply(s.now, e)
			}
		}
		switch {
		case len(todo.Watch)+len(todo.LookUp) > 0:
		case todo.Wake.IsZero() || todo.Wake.After(until):
			return s, nil
		default:
			s.now = interruption.Later(s.now, todo.Wake)
		}
	}
}

// View is what is planned for the node's pods if that is wanted of them now; false if they could not be read. Once a
// View has wanted a drain, a later one can't go back to only looking.
func (s *Survey) View(now time.Time, want Wanted) (View, bool) {
	s.now = interruption.Later(s.now, now)
	s.fleet.Apply(s.now, Set{s.node, want})
	status, _ := s.fleet.Status(s.now, s.node)
	return status.View, s.fleet.nodes[s.node].listed
}

// Refused notes that the API server has refused the pod's eviction before, which no reading shows.
func (s *Survey) Refused(pod types.UID) {
	s.fleet.nodes[s.node].refused[pod] = true
	s.fleet.plans.sooner(s.fleet.nodes[s.node], s.now)
}

// AllPods are the events that show all pods of a node.
func AllPods(node string, pods []*corev1.Pod) []Event {
	shown := make([]Event, 0, len(pods)+1)
	for _, pod := range pods {
		shown = append(shown, PodSeen{Node: node, After: pod})
	}
	return append(shown, PodsListed{node})
}
