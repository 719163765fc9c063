package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain"
)

// Assumptions are what nobody can know beforehand.
type Assumptions struct {
	// Boot is the time from a replacement's request until it takes pods.
	Boot Assumption `json:"boot"`
	// Ready is the time that a pod takes from having a node to being Ready, where nothing is known
	// of its workload. What is known of those is in ReadyOf.
	Ready Assumption `json:"ready"`
	// ReadyOf is the same of single workloads, by NAMESPACE/KIND/NAME.
	ReadyOf map[string]Assumption `json:"readyOf,omitempty"`
	// Stop is how long a pod takes to end once it is told to; never longer than its grace period.
	Stop Assumption `json:"stop"`
	// Detach is how long volumes take to be detached after their pods have gone.
	Detach Assumption `json:"detach"`
}

// Assumption is a time, and where it is from.
type Assumption struct {
	Value Seconds `json:"seconds"`
	// From is a flag, "assumed", or what in the cluster's history says so.
	From string `json:"from"`
}

// Assume is an assumption of that long.
func Assume(d time.Duration, from string) Assumption { return Assumption{Seconds(d.Seconds()), from} }

// Duration is the time.
func (a Assumption) Duration() time.Duration {
	return time.Duration(float64(a.Value) * float64(time.Second))
}

// Assumed are the assumptions for which there is neither a history nor a flag. An EC2 instance
// takes a good half minute to become a Node; detaching an EBS volume takes seconds.
func Assumed() Assumptions {
	return Assumptions{
		Boot: Assume(45*time.Second, fromNobody), Ready: Assume(10*time.Second, fromNobody),
		Stop: Assume(5*time.Second, fromNobody), Detach: Assume(6*time.Second, fromNobody),
	}
}

// fromNobody is the source of Assumed.
const fromNobody = "assumed"

// startupOf is how long the pods of a workload took to become Ready; false if none is. A pod that
// became Ready again later looks as if it had taken long: what is far from the median does not
// count. The API has whole seconds, so the mean of several is closer to the truth than each.
func startupOf(pods []*corev1.Pod) (time.Duration, int, bool) {
	var took []time.Duration
	for _, pod := range pods {
		if d, ok := drain.Startup(pod); ok {
			took = append(took, d)
		}
	}
	if len(took) == 0 {
		return 0, 0, false
	}
	slices.Sort(took)
	median := took[(len(took)-1)/2]
	sum, n := time.Duration(0), 0
	for _, d := range took {
		if d <= 2*median+2*time.Second && d >= median/2-2*time.Second {
			sum, n = sum+d, n+1
		}
	}
	return sum / time.Duration(n), n, true
}
