package audit

import (
	"slices"
	"strings"
	"time"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/handler/nodes"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Snapshot is what the checks read.
type Snapshot struct {
	// Nodes are all nodes.
	Nodes []*corev1.Node
	// Pods are those that an interruption would have to move.
	Pods []Pod
	// Replicas are how many pods each workload has, on any node and on none.
	Replicas map[Owned]int
	// Budgets are all disruption budgets.
	Budgets []*policyv1.PodDisruptionBudget
	// Deployments are those of the pods, by namespace/name.
	Deployments map[string]Deployment
	// Idle are the labels that pods of workloads without any would have, by namespace.
	Idle map[string][]labels.Set
	// OnDemand is the label, with its value, of nodes that get no spot notice.
	OnDemand nodes.Label
	// Grace is the longest grace period that a spot notice leaves.
	Grace time.Duration

	Capacity
	Coverage

	in      map[string][]*Pod // the pods of each namespace; index fills it
	byOwner map[Owned][]*Pod  // those of each workload; those without one stand for themselves
}

// Pod is what the checks read of a pod. Thousands are kept at a time.
type Pod struct {
	Namespace, Name string
	Node            string
	Owner           string // as kubectl names it; the Deployment's of a pod that has one
	Labels          map[string]string
	Grace           time.Duration

	// Surges: its successor is made before it leaves, as far as the cluster tells.
	Surges bool
	// NoSurge says why not, where no other field says it.
	NoSurge string
	// Stays is the annotation by which it asks for good not to be disrupted, or empty.
	Stays string
	// Sleep is the longest sleep of its preStop hooks.
	Sleep time.Duration
	// Blanket is the place of the toleration of everything among its tolerations; none is -1.
	Blanket int
	// Unprobed: it counts as ready as soon as its containers run.
	Unprobed bool
	// Zone is the zone that it cannot leave, as a volume of it is there; empty if there is none.
	Zone string
	// Apart keeps it off the nodes of its peers; nil for most.
	Apart *Apart
}

// Apart is what keeps the pods of a workload off each other's nodes.
type Apart struct {
	// Skew is how many more of them than the emptiest node each can have. Zero is an
	// anti-affinity: one is on a node, and no more.
	Skew int

	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
}

// Deployment is what the checks read of a Deployment.
type Deployment struct {
	Replicas int
	MinReady int // seconds
	Refuses  string
}

// Owned is a workload.
type Owned struct{ Namespace, Object string }

// kubectl is a command about the object.
func (of Owned) kubectl(verb string, words ...string) string {
	kind, name, _ := strings.Cut(of.Object, "/")
	command := []string{"kubectl"}
	if of.Namespace != "" {
		command = append(command, "-n", of.Namespace)
	}
	return console.Command(slices.Concat(command, []string{verb, kind, name}, words)...)
}

func (s *Snapshot) index() {
	s.node = map[string]*corev1.Node{}
	for _, n := range s.Nodes {
		s.node[n.Name] = n
	}
	s.in, s.byOwner = map[string][]*Pod{}, map[Owned][]*Pod{}
	for i := range s.Pods {
		p := &s.Pods[i]
		of := Owned{p.Namespace, p.Owner}
		s.in[p.Namespace], s.byOwner[of] = append(s.in[p.Namespace], p), append(s.byOwner[of], p)
	}
}
