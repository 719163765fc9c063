package karpenter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/rewatch"
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

	wake     sync.Once
	awake    chan struct{}
	watchErr sync.Once

	mu     sync.Mutex
	synced func() bool
	known  map[string]*Claim
}

func newClaimWatch(client dynamic.Interface, single bool, changed func(*Claim, string), log zerolog.Logger) *claimWatch {
	return &claimWatch{
		client:  client,
		single:  single,
		changed: changed,
		log:     log,
		awake:   make(chan struct{}),
		synced:  func() bool { return false },
		known:   map[string]*Claim{},
	}
}

// run watches from the first call of start until ctx is done.
func (c *claimWatch) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-c.awake:
	}
	// Not dynamicinformer, which imports the whole clientset and costs megabytes.
	ours, selector := c.client.Resource(nodeClaimResource), unsettled
	if c.single {
		selector = ReplacesLabel + "=" + labelValue(c.instance) + ",!" + SettledLabel
	}
	list := rewatch.Of(ours, func(o *metav1.ListOptions) { o.LabelSelector = selector })
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(rewatch.Soon(list, nil, c.log), c.client),
		&unstructured.Unstructured{}, 0, cache.Indexers{})
	// These fail only on an informer that is already running.
	_ = informer.SetTransform(slim)
	_ = informer.SetWatchErrorHandlerWithContext(c.watchFailed)
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { c.shown(o, false) },
		UpdateFunc: func(_, o any) { c.shown(o, false) },
		DeleteFunc: func(o any) { c.shown(o, true) },
	})
	if err != nil { // cannot happen: it has not been stopped
		c.log.Error().Err(err).Msg("watch of replacements not started")
		return
	}
	c.mu.Lock()
	c.synced = registration.HasSynced
	c.mu.Unlock()

	informer.RunWithContext(ctx)
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
	return c.known[name], c.synced()
}

// learn takes in a claim that a call has returned, as the watch might show it only later. Others
// than the watch shows are of no interest.
func (c *claimWatch) learn(claim *Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if claim.Labels[ReplacesLabel] == "" || claim.Labels[SettledLabel] != "" || c.single && !claim.isOurs(c.instance) {
		return
	}
	if old := c.known[claim.Name]; old == nil || newer(claim, old) {
		c.known[claim.Name] = claim
	}
}

// newer compares two states of one object.
func newer(a, b *Claim) bool {
	cmp, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return a.UID != b.UID || err != nil || cmp > 0
}

func (c *claimWatch) shown(o any, gone bool) {
	if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = d.Obj
	}
	claim, ok := o.(*Claim)
	if !ok {
		return
	}
	c.mu.Lock()
	old := c.known[claim.Name]
	if gone {
		delete(c.known, claim.Name)
	} else {
		c.known[claim.Name] = claim
	}
	c.mu.Unlock()

	switch {
	case gone:
		c.changed(claim, "")
	case old == nil || old.state() != claim.state() || old.DeletionTimestamp.IsZero() != claim.DeletionTimestamp.IsZero():
		c.changed(claim, claim.state())
	}
}

// forget drops a claim that a call has shown to be gone.
func (c *claimWatch) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, name)
}

// watchFailed replaces client-go's own log. That a watch ends is normal; that it is
// forbidden is said once.
func (c *claimWatch) watchFailed(_ context.Context, _ *cache.Reflector, err error) {
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		c.watchErr.Do(func() {
			c.log.Error().Err(err).Msg("replacements cannot be watched")
		})
		return
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		c.log.Debug().Err(err).Msg("watch of replacements ended")
	}
}

// slim keeps what we need to know of a NodeClaim of ours. A claim lives as long as its node,
// and its requirements can list hundreds of instance types.
func slim(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil // already slim
	}
	return decodeClaim(u).slim(), nil
}

func (c *Claim) slim() *Claim {
	s := &Claim{}
	s.Name, s.UID, s.ResourceVersion = c.Name, c.UID, c.ResourceVersion
	s.CreationTimestamp, s.DeletionTimestamp = c.CreationTimestamp, c.DeletionTimestamp
	s.Labels, s.Annotations = map[string]string{}, map[string]string{}
	for _, key := range []string{ReplacesLabel, nodePoolLabel, SettledLabel} {
		if v, ok := c.Labels[key]; ok {
			s.Labels[key] = v
		}
	}
	for _, key := range []string{NodeAnnotation, PodsAnnotation, ProtectedAnnotation, doNotDisrupt} {
		if v, ok := c.Annotations[key]; ok {
			s.Annotations[key] = v
		}
	}
	s.Status.NodeName = c.Status.NodeName
	for _, kind := range []string{"Launched", "Initialized"} {
		if cond := meta.FindStatusCondition(c.Status.Conditions, kind); cond != nil {
			s.Status.Conditions = append(s.Status.Conditions, *cond)
		}
	}
	return s
}
