package report

import (
	"cmp"
	"slices"

	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/plan"
)

// Score is how the interruptions went. All times are seconds since the first notice.
type Score struct {
	// Pods counts those that had to leave, by their outcome.
	Pods int `json:"pods"`
	Counts
	// Dip is the most ready pods that a workload missed at a moment, of those that it had at the
	// notice and still asked for. UnavailableSeconds adds up how long each was missing.
	Dip                int     `json:"dip"`
	UnavailableSeconds float64 `json:"unavailablePodSeconds"`
	// SlackSeconds is the least of all nodes; nil if it is not known of one that has a deadline,
	// or none has.
	SlackSeconds *float64 `json:"slackSeconds,omitempty"`

	Nodes     []NodeScore     `json:"nodes"`
	Workloads []WorkloadScore `json:"workloads,omitempty"`
	// Forecast compares the pods with the forecast; nil without one.
	Forecast *Comparison `json:"forecast,omitempty"`
	Required []Verdict   `json:"required,omitempty"`
}

// Counts are pods by what became of them.
type Counts struct {
	Graceful  int `json:"graceful"`
	Truncated int `json:"truncated"`
	Forced    int `json:"forced"`
	Left      int `json:"left"`
	// Open is how many have no end: the interruption was cancelled, or is not over.
	Open int `json:"open,omitempty"`
}

// NodeScore is the drain of a node, and as it was forecast.
type NodeScore struct {
	Name   string `json:"name"`
	Counts `json:"pods"`
	// Ready is when the replacement took pods, Ended when the drain ended.
	Ready         *plan.Seconds `json:"readySeconds,omitempty"`
	ForecastReady *plan.Seconds `json:"forecastReadySeconds,omitempty"`
	Ended         *plan.Seconds `json:"endedSeconds,omitempty"`
	ForecastEnded *plan.Seconds `json:"forecastEndedSeconds,omitempty"`
	Slack         *plan.Seconds `json:"slackSeconds,omitempty"`
	ForecastSlack *plan.Seconds `json:"forecastSlackSeconds,omitempty"`
}

// WorkloadScore is how a workload fared, and as it was forecast.
type WorkloadScore struct {
	Namespace          string  `json:"namespace"`
	Name               string  `json:"name"`
	Desired            int     `json:"desired"`
	Fewest             int     `json:"fewestReady"`
	ForecastFewest     *int    `json:"forecastFewestReady,omitempty"`
	Missing            int     `json:"missing"`
	UnavailableSeconds float64 `json:"unavailablePodSeconds"`
}

// Comparison is the forecast beside the outcome, pod by pod.
type Comparison struct {
	AsForecast int       `json:"asForecast"`
	Of         int       `json:"of"`
	Misses     []PodPair `json:"misses,omitempty"`
	// Later is how many pods had to leave that came to the nodes after the forecast.
	Later int       `json:"later,omitempty"`
	Pairs []PodPair `json:"-"`
}

// PodPair is a pod's outcome and its forecast.
type PodPair struct {
	Node      string `json:"node"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Forecast is empty if the pod came later; Outcome is empty if it is open, and stays if nobody moved
	// the pod.
	Forecast     plan.Outcome  `json:"forecast,omitempty"`
	Outcome      plan.Outcome  `json:"outcome,omitempty"`
	ForecastGone *plan.Seconds `json:"forecastGoneSeconds,omitempty"`
	Gone         *plan.Seconds `json:"goneSeconds,omitempty"`
	Reason       string        `json:"forecastReason,omitempty"`
}

func score(r observe.Recording, f *plan.Forecast) Score {
	s := Score{Nodes: []NodeScore{}}
	begin := r.Begin()
	var pods []observe.Pod
	for _, n := range r.Nodes {
		node := NodeScore{Name: n.Name, Counts: countsOf(n.Pods), Ended: since(begin, n.Ended), Slack: (*plan.Seconds)(n.SlackSeconds)}
		if n.Replacement != nil {
			node.Ready = since(begin, n.Replacement.Ready)
		}
		pods = append(pods, n.Pods...)
		s.Nodes = append(s.Nodes, node)
	}
	s.Pods, s.Counts = len(pods), countsOf(pods)
	for _, w := range r.Workloads {
		s.Workloads = append(s.Workloads, WorkloadScore{
			Namespace:          w.Namespace,
			Name:               w.Name,
			Desired:            w.Samples[len(w.Samples)-1].Desired,
			Fewest:             w.Fewest,
			Missing:            w.Missing,
			UnavailableSeconds: w.UnavailableSeconds,
		})
		s.Dip = max(s.Dip, w.Missing)
		s.UnavailableSeconds += w.UnavailableSeconds
	}
	s.SlackSeconds = leastSlack(r.Nodes)
	if f != nil {
		s.compare(r, *f)
	}
	return s
}

// leastSlack is nil if a node with a deadline has none.
func leastSlack(nodes []observe.Node) (least *float64) {
	for _, n := range nodes {
		switch {
		case n.Deadline == nil:
		case n.SlackSeconds == nil:
			return nil
		case least == nil || *n.SlackSeconds < *least:
			least = n.SlackSeconds
		}
	}
	return least
}

func countsOf(pods []observe.Pod) (c Counts) {
	of := map[plan.Outcome]*int{plan.Graceful: &c.Graceful, plan.Truncated: &c.Truncated, plan.Forced: &c.Forced, plan.Left: &c.Left}
	for _, p := range pods {
		*cmp.Or(of[p.Outcome], &c.Open)++
	}
	return c
}

// compare puts the forecast beside what happened.
func (s *Score) compare(r observe.Recording, f plan.Forecast) {
	for i, n := range s.Nodes {
		for _, was := range f.Nodes {
			if was.Name != n.Name {
				continue
			}
			s.Nodes[i].ForecastEnded, s.Nodes[i].ForecastSlack = was.Ended, was.Slack
			if was.Replacement != nil {
				s.Nodes[i].ForecastReady = was.Replacement.Ready
			}
		}
	}
	for i, w := range s.Workloads {
		for _, was := range f.Workloads {
			if was.Namespace == w.Namespace && was.Name == w.Name {
				s.Workloads[i].ForecastFewest = &was.FewestReady
			}
		}
	}
	c := &Comparison{Pairs: pairs(r, f)}
	for _, p := range c.Pairs {
		switch {
		case p.Forecast == "":
			c.Later++
			continue
		case p.Forecast == p.Outcome:
			c.AsForecast++
		default:
			c.Misses = append(c.Misses, p)
		}
		c.Of++
	}
	s.Forecast = c
}

// pairs joins the pods of both by their names. A pod that nothing was seen of has stayed.
func pairs(r observe.Recording, f plan.Forecast) []PodPair {
	known := map[[3]string]*PodPair{}
	for _, p := range f.Pods {
		known[[3]string{p.Node, p.Namespace, p.Name}] = &PodPair{
			Node:         p.Node,
			Namespace:    p.Namespace,
			Name:         p.Name,
			Forecast:     p.Outcome,
			Outcome:      plan.Stays,
			ForecastGone: p.Gone,
			Reason:       p.Reason,
		}
	}
	for _, n := range r.Nodes {
		for _, p := range n.Pods {
			k := [3]string{n.Name, p.Namespace, p.Name}
			if known[k] == nil {
				known[k] = &PodPair{Node: n.Name, Namespace: p.Namespace, Name: p.Name}
			}
			known[k].Outcome, known[k].Gone = p.Outcome, since(r.Begin(), p.Gone)
		}
	}
	list := make([]PodPair, 0, len(known))
	for _, p := range known {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b PodPair) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list
}
