package sim

import (
	"fmt"
	"slices"
	"time"

	"spot-handler/handler/interruption"
)

// Scene is all that a round is made of. It is plain data: two rounds of one scene differ only in what Go
// leaves to chance.
type Scene struct {
	Seed uint64
	// Flags are those of each replica, besides the ones that it must have.
	Flags []string
	// Intake is how notices reach the daemon.
	Intake string

	Nodes     []Node
	Workloads []Workload
	// Pods are those that there are at the beginning, but those of DaemonSets. If there are none, all workloads have
	// theirs, where there is room, and all have been there for long.
	Pods   []Standing
	Losses []Loss
	// Rehearsals are by an operator, of nodes that EC2 takes and of others.
	Rehearsals []Rehearsal
	Faults     []Fault
	Rates      Rates
	// Ahead is how far the cluster's clock is ahead of the daemon's and EC2's.
	Ahead time.Duration

	// Webhook is how long an admission webhook that sees every eviction takes, such as a policy engine's; 0: there is
	// none.
	Webhook time.Duration

	Karpenter Karpenter
	Groups    Groups
	ScaleIns  []ScaleIn // of the groups, if they have a hook
}

// Pools of nodes.
const (
	PoolSpot     = "spot"
	PoolFallback = "fallback" // on demand
)

// Node is one that there is at the beginning.
type Node struct {
	Name string
	Pool string
	Zone string
	CPU  int64 // in thousandths
	// Cordoned: an operator has done so.
	Cordoned bool
}

// Karpenter is how the autoscaler behaves.
type Karpenter struct {
	Boot         time.Duration // from launch to Ready, more or less
	NoCapacity   float64       // the chance that a launch fails for want of capacity
	NoSpot       float64       // the same for spot
	NeverReady   float64       // the chance that a node registers and never initializes
	Provisions   bool          // it makes nodes for pods that are pending
	Consolidates time.Duration // how long a node may be empty; 0: for ever
	CPU          int64         // the least that a machine has, in thousandths; 0: 4000
	Steady       bool          // it is always equally fast
	Limit        int64         // of the fallback pool's processors, in thousandths; 0: none
	Reserved     int           // machines that are paid for and not used yet, in the fallback pool, which takes any but spot
}

// Workload is a controller with its pods.
type Workload struct {
	Name     string
	Kind     string // Deployment, ReplicaSet, StatefulSet, Job, DaemonSet or Pod
	Replicas int
	CPU      int64 // in thousandths, of each pod

	Grace int64         // seconds
	Stop  time.Duration // how long a pod takes to end, if it may
	Start time.Duration // how long it takes to become Ready

	MaxSurge string // of a Deployment, such as 25% or 1
	Budget   string // such as maxUnavailable=1; empty: none
	Broken   int    // how many of the pods are never Ready
	Volume   bool   // each pod of a StatefulSet has one
	Gang     bool   // its pods live and die together

	Tolerates bool   // every taint
	Zone      string // that its pods select; empty: any
	ZoneBy    string // the label that they select it by

	Annotations map[string]string // of its pods
}

// Loss is what EC2 does to a node.
type Loss struct {
	Node string
	Kind interruption.Kind
	At   time.Duration // when EC2 announces it, from the beginning of the round

	Delay  time.Duration // until the message is in the queue
	Copies int           // how often the message comes; 0: never
	Again  time.Duration // between copies
	Renews bool          // the second copy is an announcement of its own, with a deadline that is earlier by renewedBy
	Lead   time.Duration // from the announcement to the deadline; 0: there is none

	// Hibernates: EC2 hibernates the instance instead of terminating it, and begins at once.
	Hibernates bool

	Takes  bool
	Early  time.Duration // how long before its deadline EC2 takes the instance; negative: after it
	Cancel time.Duration // when an operator cancels, from the beginning; 0: nobody does

	Withdrawn time.Duration // when EC2 takes a scheduled event back, from the beginning; 0: it does not

	// Reboots: the scheduled event is a reboot. Only for instances that EC2 interrupts before it happens.
	Reboots bool

	Warned time.Duration // how long before it EC2 recommends a rebalance; 0: it does not
}

// renewedBy is more than what two deadlines of the same interruption can differ by.
const renewedBy = 3 * time.Second

func (l Loss) String() string {
	return fmt.Sprintf("%s of %s at %s, %d copies after %s, lead %s, takes %t %s early, cancelled %s, warned %s",
		l.Kind, l.Node, l.At, l.Copies, l.Delay, l.Lead, l.Takes, l.Early, l.Cancel, l.Warned)
}

// What can go wrong for a while.
const (
	FaultDown    = "down"    // the API server refuses connections
	FaultSilent  = "silent"  // nothing passes between a replica and the API server
	FaultKill    = "kill"    // a replica is killed, and started again afterwards
	FaultStop    = "stop"    // the same, in good order
	FaultBreak   = "break"   // watches break
	FaultExpire  = "expire"  // the past is forgotten, and watches break
	FaultQueue   = "queue"   // SQS fails
	FaultSlow    = "slow"    // the API server needs a second or more for each request
	FaultTouches = "touches" // somebody changes Nodes all the time
	FaultAdmit   = "admit"   // an admission webhook for evictions is slow, or hangs
	FaultMarks   = "marks"   // writes of Nodes hang
	FaultDenies  = "denies"  // a policy denies changes of pods' status
	FaultLease   = "lease"   // somebody deletes the leader's Lease: for a while two believe that they lead
	FaultOlder   = "older"   // another API server answers, whose watch cache is behind, and stays so
)

// Fault is one thing that goes wrong.
type Fault struct {
	What    string
	Replica int // of those about one replica; -1: all
	From    time.Duration
	For     time.Duration
	Takes   time.Duration // how long a webhook or a request takes
	Fails   bool          // and then refuses
	Some    bool          // of the requests: one of several API servers is sick
	Behind  time.Duration // how old a watch cache is
	Plural  string        // of which kind; empty: of all
}

func (f Fault) to() time.Duration { return f.From + f.For }

// StartsWell reports whether nothing goes wrong that early in the round.
func (s Scene) StartsWell(within time.Duration) bool {
	return s.Rates == (Rates{}) && !slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.From < within })
}

// excuses reports whether a drain may be late because of the fault. Webhooks, policies and writes of Nodes may
// hold up what they are about, and nothing else.
func (f Fault) excuses() bool {
	return f.What != FaultAdmit && f.What != FaultMarks && f.What != FaultDenies
}

// Rates are the chances that something happens to a request.
type Rates struct {
	Error    float64 // an error in place of an answer
	Slow     float64 // up to two seconds
	Lost     float64 // the request is served, the answer lost
	Conflict float64 // somebody else was faster
	Cut      float64 // an eviction ends after its first step
	Lag      time.Duration
}

// rare reports whether so few requests fail that they don't make a drain late.
func (r Rates) rare() bool {
	return max(r.Error, r.Slow, r.Lost, r.Conflict) <= 0.01 && r.Cut == 0 && r.Lag <= 20*time.Millisecond
}

// Quiet reports whether nothing goes wrong but EC2.
func (s Scene) Quiet() bool { return len(s.Faults) == 0 && s.Rates == Rates{} }
