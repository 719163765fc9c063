// Package watch turns the cluster into the events that [plan.Fleet] takes in: it watches the pods of nodes,
// the disruption budgets of namespaces, Deployments with their pods, and VolumeAttachments, and looks up what
// few plans need. It decides nothing.
//
// What is shown of a watch comes in order, and nothing of one that has ended. Watches and look-ups begin in
// their turn, so however many there are, those of one node or one namespace hold up no others.
package watch

import (
	"context"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/drain/fair"
	"spot-handler/drain/plan"
)

// Clients read the cluster.
type Clients struct {
	// Pods and Budgets are the REST clients of the API groups core/v1 and policy/v1.
	Pods    rest.Interface
	Budgets rest.Interface
	// Dynamic reads what few plans need: Deployments, ReplicaSets, DaemonSets, volume claims,
	// VolumeAttachments and namespaces.
	Dynamic dynamic.Interface
}

// Options configure a Cluster.
type Options struct {
	Clients

	// Report takes in what was seen, unless ctx has ended by then. It is called from any goroutine, and
	// must not block.
	Report func(ctx context.Context, e plan.Event)

	Logger zerolog.Logger
}

// How many watches and look-ups are begun at the same moment: each has the API server read a node's
// pods, or a namespace's objects, and a thousand at once would hold up everything else. Of one
// namespace they are fewer, as its objects can be so many and so large that all of them take long: it
// can have a third, see [fair.Lane]. As many as there are wait for their turn.
const (
	startsAtOnce  = 32
	lookupsAtOnce = 48
	allCanWait    = 1 << 30
)

// Cluster watches. Its methods are not safe for concurrent use, and none blocks.
type Cluster struct {
	opts    Options
	nodes   *fair.Lane // of the nodes' watches
	others  *fair.Lane // of all else: the nodes' own pods wait for none of it
	watches map[plan.Subject]watch
}

// watch is one that goes on until it is stopped.
type watch struct {
	stop   context.CancelFunc
	opened func() // gives its place among those that open back
}

// New returns a Cluster that watches nothing.
func New(opts Options) *Cluster {
	return &Cluster{
		opts:    opts,
		nodes:   fair.NewLane(startsAtOnce, allCanWait),
		others:  fair.NewLane(lookupsAtOnce, allCanWait),
		watches: map[plan.Subject]watch{},
	}
}

// Watch reports what is seen of the subject until Unwatch, or until ctx ends.
func (c *Cluster) Watch(ctx context.Context, s plan.Subject) {
	ctx, stop := context.WithCancel(ctx)
	w := watch{stop: stop, opened: func() {}}
	report := func(e plan.Event) { c.opts.Report(ctx, e) }
	switch s.Kind {
	case plan.PodsOfNode:
		w.opened = c.watchPods(ctx, s.Name.Name, report)
	case plan.Budgets:
		c.watchBudgets(ctx, s.Name.Namespace, report)
	case plan.DeploymentOfPod:
		c.others.Do(ctx, fair.Task{
			Tenant: s.Name.Namespace,
			Who:    types.UID("deployment/" + s.Name.Name),
			Run:    func() { c.watchDeployment(ctx, s.Name, report) },
		})
	case plan.Attachments:
		c.watchAttachments(ctx, report)
	}
	c.watches[s] = w
}

// Unwatch ends that.
func (c *Cluster) Unwatch(s plan.Subject) {
	if w, ok := c.watches[s]; ok {
		w.stop()
		delete(c.watches, s)
	}
}

// Planned is that the node has its first plan, by which pods leave: the watch of another can begin.
func (c *Cluster) Planned(node string) {
	if w, ok := c.watches[plan.Subject{Kind: plan.PodsOfNode, Name: types.NamespacedName{Name: node}}]; ok {
		w.opened()
	}
}

// lookupTimeout bounds one request of a look-up.
const lookupTimeout = 5 * time.Second

// LookUp reports what the subject is now, or that it could not be read, unless ctx ends before.
func (c *Cluster) LookUp(ctx context.Context, s plan.Subject) {
	c.others.Do(ctx, fair.Task{Tenant: s.Name.Namespace, Who: types.UID(string(s.Kind) + "/" + s.Name.Name), Run: func() {
		limited, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		value, err := c.opts.lookUp(limited, s)
		if err != nil {
			c.opts.Report(ctx, plan.LookUpFailed{Subject: s})
			return
		}
		c.opts.Report(ctx, plan.LookedUp{Subject: s, Value: value})
	}})
}
