package plan

import "spot-handler/drain"

// First is what the drain decides about the pods of each lost node, by name, when its notice has
// come and a replacement is pending: before one is asked for, which these decisions size.
func First(in Input) map[string][]drain.Decision {
	w := newWorld(in)
	first := map[string][]drain.Decision{}
	for _, l := range w.lost {
		l.capacity = drain.PendingCapacity
		first[l.Name()] = drain.Plan(l.noticed, w.situation(l))
	}
	return first
}
