package karpenter

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"spot-handler/drain/rewatch"
	"spot-handler/handler/nodes"
)

// launchTimeout is how long a claim can be without an instance. Such a claim halts all of
// Karpenter's provisioning and consolidation, so it is worse than none. Launches that
// succeed take a few seconds; Karpenter itself would wait 5 minutes.
const launchTimeout = 25 * time.Second

// claimWatch knows our NodeClaims from one watch, which starts with the first of them.
type claimWatch struct {
	client   dynamic.Interface
	single   bool                             // there is only one instance to ask about
	instance string                           // that one, once awake is closed
	changed  func(claim *Claim, state string) // with the state "" if the claim is gone
	log      zerolog.Logger

	wake    sync.Once
	awake   chan struct{}
	refused sync.Once

	mu      sync.Mutex
	synced  bool
	known   map[string]*Claim
	replace map[string]map[string]bool // their names, by the value of ReplacesLabel
}

func newClaimWatch(client dynamic.Interface, single bool, changed func(*Claim, string), log zerolog.Logger) *claimWatch {
	return &claimWatch{
		client:  client,
		single:  single,
		changed: changed,
		log:     log,
		awake:   make(chan struct{}),
		known:   map[string]*Claim{},
		replace: map[string]map[string]bool{},
	}
}

// run watches from the first call of start until ctx is done.
func (c *claimWatch) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-c.awake:
	}
	selector := unsettled
	if c.single {
		selector = ReplacesLabel + "=" + labelValue(c.instance) + ",!" + SettledLabel
	}
	list := rewatch.Of(c.client.Resource(nodeClaimResource), func(o *metav1.ListOptions) { o.LabelSelector = selector })
	rewatch.New(rewatch.Options[*unstructured.Unstructured, *Claim]{
		Source:  cache.ToListWatcherWithWatchListSemantics(list, c.client),
		Keep:    func(u *unstructured.Unstructured) *Claim { return decodeClaim(u).slim() },
		Changed: c.shown,
		Synced: func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.synced = true
		},
		Refused: func(err error) {
			c.refused.Do(func() { c.log.Error().Err(err).Msg("replacements cannot be watched") })
		},
		Logger: c.log,
	}).Run(klog.NewContext(ctx, klog.Logger{})) // client-go would say each time what Refused says once
}

// start makes run begin to watch, if it has not. The instance is the one that is asked
// about.
func (c *claimWatch) start(instance string) {
	c.wake.Do(func() {
		c.mu.Lock()
		c.instance = instance
		c.mu.Unlock()
		close(c.awake)
	})
}

// get is what is known of the claim, or nil, and whether the watch has shown all
// claims at least once.
func (c *claimWatch) get(name string) (*Claim, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[name], c.synced
}

// learn takes in a claim that a call has returned, as the watch might show it only later. Others
// than the watch shows are of no interest.
func (c *claimWatch) learn(claim *Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if claim.Labels[ReplacesLabel] == "" || claim.Labels[SettledLabel] != "" || c.single && !claim.isOurs(c.instance) {
		return
	}
	if old := c.known[claim.Name]; old == nil || old.UID != claim.UID || !nodes.Older(claim.ResourceVersion, old.ResourceVersion) {
		c.keepLocked(claim.slim())
	}
}

func (c *claimWatch) keepLocked(claim *Claim) {
	c.dropLocked(claim.Name)
	label := claim.Labels[ReplacesLabel]
	if c.replace[label] == nil {
		c.replace[label] = map[string]bool{}
	}
	c.known[claim.Name], c.replace[label][claim.Name] = claim, true
}

func (c *claimWatch) dropLocked(name string) {
	claim := c.known[name]
	if claim == nil {
		return
	}
	label := claim.Labels[ReplacesLabel]
	delete(c.known, name)
	if delete(c.replace[label], name); len(c.replace[label]) == 0 {
		delete(c.replace, label)
	}
}

func (c *claimWatch) shown(before, after *Claim) {
	c.mu.Lock()
	old := c.known[cmp.Or(after, before).Name]
	if after == nil {
		c.dropLocked(before.Name)
	} else {
		c.keepLocked(after)
	}
	c.mu.Unlock()

	switch {
	case after == nil:
		c.changed(before, "")
	case old == nil || old.state() != after.state() || old.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero():
		c.changed(after, after.state())
	}
}

// forget drops a claim that a call has shown to be gone.
func (c *claimWatch) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked(name)
}

// slim keeps what we need to know of a NodeClaim of ours. A claim lives as long as its node,
// and its requirements can list hundreds of instance types.
func (c *Claim) slim() *Claim {
	s := *c
	s.Spec, s.OwnerReferences, s.Status.Capacity, s.Status.Allocatable = claimSpec{}, nil, nil, nil
	return &s
}
