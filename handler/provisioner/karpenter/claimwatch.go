package karpenter

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"spot-handler/drain/rewatch"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
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

	mu     sync.Mutex
	synced bool
	known  map[string]*Claim
}

func newClaimWatch(client dynamic.Interface, single bool, changed func(*Claim, string), log zerolog.Logger) *claimWatch {
	return &claimWatch{
		client:  client,
		single:  single,
		changed: changed,
		log:     log,
		awake:   make(chan struct{}),
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
		c.known[claim.Name] = claim.slim()
	}
}

func (c *claimWatch) shown(before, after *Claim) {
	c.mu.Lock()
	old := c.known[cmp.Or(after, before).Name]
	if after == nil {
		delete(c.known, before.Name)
	} else {
		c.known[after.Name] = after
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
	delete(c.known, name)
}

// slim keeps what we need to know of a NodeClaim of ours. A claim lives as long as its node,
// and its requirements can list hundreds of instance types.
func (c *Claim) slim() *Claim {
	s := *c
	s.Spec, s.OwnerReferences, s.Status.Capacity, s.Status.Allocatable = claimSpec{}, nil, nil, nil
	return &s
}

// Terminate deletes the node's NodeClaim, and marks it with the time at which Karpenter's patience
// with the node's pods ends: the record's deadline, or now if that has passed. If there is none, as
// after a rebalance recommendation, the pods that stay, such as those of DaemonSets, have their own
// grace periods. A node that Karpenter did not make is not touched, nor one whose instance comes
// back. It is idempotent: what is gone or being deleted counts as terminated.
func (b *Backend) Terminate(ctx context.Context, node *corev1.Node, rec interruption.Record) error {
	if r := provisioner.Asked(rec, provisioner.Karpenter); r != nil {
		if known, synced := b.claims.get(r.Name); known != nil || !synced {
			b.keeper.queue.AddAfter(r.Name, recordedAfter)
		}
	}
	name, uid, ok := OwnerClaim(node)
	switch {
	case rec.ComesBack():
		return nil
	case !ok && hasTaint(node, unregisteredTaint):
		// Karpenter names the owner in a moment, when it registers the Node of a new instance.
		// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/controllers/nodeclaim/lifecycle/registration.go
		return fmt.Errorf("terminate node %q: Karpenter has not registered it yet", node.Name)
	case !ok:
		return nil
	}
	until, err := b.patience(ctx, node, rec)
	if err == nil {
		err = b.terminate(ctx, node, name, uid, until)
	}
	if reason, ok := unavailable(err); ok {
		if b.said.First(reason) {
			b.log.Warn().Str("node", node.Name).Str("nodeclaim", name).Str("reason", reason).Msg("NodeClaim of the node not deleted")
		}
		return nil
	}
	return err
}

const (
	// recordedAfter is how long after Terminate the Node in memory says that the drain is over: no more
	// pods come to the replacement.
	recordedAfter = time.Second
	// longestPatience bounds a grace period that is waited for: some pods ask for days.
	longestPatience = time.Hour
	// endsLate is how much later than it says Karpenter's drain gets to a node: it was seen to
	// take 8 s.
	endsLate = 30 * time.Second
)

// patience is when Karpenter must end what is still on the node. From a grace period before that
// time on it deletes a pod, past budgets, with what is left of the period, one second at least.
// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/controllers/node/termination/terminator/terminator.go
func (b *Backend) patience(ctx context.Context, node *corev1.Node, rec interruption.Record) (time.Time, error) {
	now := time.Now()
	if !rec.Deadline.IsZero() {
		return interruption.Later(rec.Deadline, now), nil
	}
	list, err := b.opts.Pods.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name, ResourceVersion: cached})
	if err != nil {
		return time.Time{}, fmt.Errorf("list pods on node %q: %w", node.Name, err)
	}
	var longest time.Duration
	for i := range list.Items {
		if grace := list.Items[i].Spec.TerminationGracePeriodSeconds; grace != nil {
			longest = max(longest, time.Duration(min(*grace, int64(longestPatience/time.Second)))*time.Second)
		}
	}
	return now.Add(longest + endsLate), nil
}

// terminate marks the NodeClaim and deletes it. A kubelet that makes its own Node can name any
// owner, so the patch tests which instance the claim says it is, and changes nothing if that is
// another.
func (b *Backend) terminate(ctx context.Context, node *corev1.Node, name string, uid types.UID, until time.Time) error {
	// There are annotations to add to: Karpenter notes on each claim what it was made from.
	patch := fmt.Sprintf(`[{"op":"test","path":"/metadata/uid","value":%q},{"op":"test","path":"/status/providerID","value":%q},`+
		`{"op":"add","path":"/metadata/annotations/%s","value":%q}]`,
		uid, node.Spec.ProviderID, strings.ReplaceAll(terminationTimestamp, "/", "~1"), until.UTC().Format(time.RFC3339))
	_, err := b.opts.Dynamic.Resource(nodeClaimResource).Patch(ctx, name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{FieldManager: fieldManager})
	switch {
	case isMissing(err):
		return nil
	case apierrors.IsInvalid(err), apierrors.IsConflict(err):
		// Another claim of that name, another's claim, or a patch that lost the race too often.
		now, getErr := b.fresh(ctx, name)
		switch {
		case getErr == nil && (now == nil || now.UID != uid):
			return nil
		case getErr == nil && now.Status.ProviderID != node.Spec.ProviderID:
			b.log.Warn().Str("node", node.Name).Str("nodeclaim", name).Str("reason", "it is "+now.Status.ProviderID).Msg("NodeClaim of the node not deleted")
			return nil
		}
		return fmt.Errorf("patch NodeClaim %q: %w", name, err)
	case err != nil:
		return fmt.Errorf("patch NodeClaim %q: %w", name, err)
	}
	err = b.opts.Dynamic.Resource(nodeClaimResource).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !isMissing(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete NodeClaim %q: %w", name, err)
	}
	return nil
}
