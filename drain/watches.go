package drain

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/plan"
	"spot-handler/drain/rewatch"
)

// budgetWatch watches the disruption budgets of the namespaces whose pods have to leave. They
// say how many pods can go at a time, and wake refused ones when they allow disruptions
// again. A namespace without such pods is not watched.
type budgetWatch struct {
	sharedWatch[string, *rewatch.Watch[*policyv1.PodDisruptionBudget]] // by namespace
	client                                                             rest.Interface
	wake                                                               func(*policyv1.PodDisruptionBudget) // is called when it allows disruptions
	known                                                              func()                              // is called when a namespace's budgets are known
	logger                                                             zerolog.Logger
}

// budgetBytes is how much is kept of the budgets of one namespace, in the API's binary encoding:
// thousands of ordinary ones. Of the others only the names are kept: the API server enforces them
// all the same, but nobody's turn is planned by them.
const budgetBytes = 1 << 20

func newBudgetWatch(opts Options, wake func(*policyv1.PodDisruptionBudget), known func()) *budgetWatch {
	b := &budgetWatch{client: opts.Budgets, wake: wake, known: known, logger: opts.Logger}
	b.sharedWatch = newSharedWatch(opts.Notify, b.watch)
	return b
}

// watch watches a namespace. The nodes that use it are notified when its budgets are known.
func (b *budgetWatch) watch(ctx context.Context, namespace string) *rewatch.Watch[*policyv1.PodDisruptionBudget] {
	sizes := boundedSizes{most: budgetBytes, of: map[string]int{}}
	w := rewatch.New(rewatch.Options[*policyv1.PodDisruptionBudget, *policyv1.PodDisruptionBudget]{
		Source: cache.NewListWatchFromClient(b.client, "poddisruptionbudgets", namespace, fields.Everything()),
		Keep: func(budget *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget {
			if sizes.set(budget.Name, budget.Size()) {
				return budget
			}
			return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: budget.Name, UID: budget.UID, ResourceVersion: budget.ResourceVersion,
			}}
		},
		Changed: func(before, after *policyv1.PodDisruptionBudget) {
			switch {
			case after == nil:
				sizes.set(before.Name, 0)
			case after.Status.DisruptionsAllowed > 0:
				b.wake(after)
			}
		},
		Synced: func() {
			b.known()
			b.notifyUsers(namespace)
		},
		Logger: b.logger,
	})
	go w.Run(ctx)
	return w
}

// boundedSizes adds up the sizes of objects that are kept.
type boundedSizes struct {
	most int
	of   map[string]int // by name
	sum  int
}

// set says how large an object is now, 0 if it is gone, and reports whether it can be kept.
func (s *boundedSizes) set(name string, size int) bool {
	s.sum -= s.of[name]
	delete(s.of, name)
	if size == 0 || s.sum+size > s.most {
		return false
	}
	s.of[name] = size
	s.sum += size
	return true
}

// list returns the known budgets of a namespace.
func (b *budgetWatch) list(namespace string) []*policyv1.PodDisruptionBudget {
	w := b.get(namespace)
	if w == nil {
		return nil
	}
	return w.All()
}

// synced reports whether the budgets of a namespace are known.
func (b *budgetWatch) synced(namespace string) bool {
	w := b.get(namespace)
	return w != nil && w.HasSynced()
}

// of returns the known budgets that cover the pod.
func (b *budgetWatch) of(pod *corev1.Pod) []*policyv1.PodDisruptionBudget {
	return slices.DeleteFunc(b.list(pod.Namespace), func(budget *policyv1.PodDisruptionBudget) bool { return !plan.Covers(budget, pod.Labels) })
}

var attachmentResource = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}

const byNode = "node"

// attachmentWatch watches VolumeAttachments while a node with pods with volumes is drained:
// a volume that is still attached to the old node holds up the pod's replacement. The API
// cannot select those of one node, so there is one watch for all.
type attachmentWatch struct {
	sharedWatch[allNodes, *attachments]
	dynamic dynamic.Interface
	logger  zerolog.Logger
}

type allNodes struct{}

type attachments struct {
	*rewatch.Watch[*attachment]
	forbidden atomic.Bool
}

func newAttachmentWatch(opts Options) *attachmentWatch {
	a := &attachmentWatch{dynamic: opts.Dynamic, logger: opts.Logger}
	a.sharedWatch = newSharedWatch(opts.Notify, a.watch)
	return a
}

func (a *attachmentWatch) watch(ctx context.Context, key allNodes) *attachments {
	ctx, stop := context.WithCancel(ctx)
	of := &attachments{}
	of.Watch = rewatch.New(rewatch.Options[*unstructured.Unstructured, *attachment]{
		Source:  rewatch.Of(a.dynamic.Resource(attachmentResource), func(*metav1.ListOptions) {}),
		Keep:    asAttachment,
		Indexes: map[string]func(*attachment) []string{byNode: func(one *attachment) []string { return []string{one.node} }},
		Changed: func(before, after *attachment) {
			if one := cmp.Or(after, before); (before == nil || after == nil) && a.uses(one.node) {
				a.notify(one.node)
			}
		},
		Synced: func() { a.notifyUsers(key) },
		Refused: func(err error) { // nobody waits for volumes any more
			stop()
			if !of.forbidden.Swap(true) {
				a.logger.Warn().Err(err).Msg("watch VolumeAttachments; drains do not wait for volumes")
				a.notifyUsers(key)
			}
		},
		Logger: a.logger,
	})
	go of.Run(ctx)
	return of
}

func (a *attachmentWatch) uses(node string) bool { return slices.Contains(a.usersOf(allNodes{}), node) }

// of lists the PersistentVolumes that are attached to the node; known is false until the
// watch has shown them. If we must not read them there are none: the pods have gone, which is what
// counts.
func (a *attachmentWatch) of(node string) (volumes []string, known bool) {
	w := a.get(allNodes{})
	switch {
	case w == nil, !a.uses(node), w.forbidden.Load():
		return nil, true
	case !w.HasSynced():
		return nil, false
	}
	for _, one := range w.By(byNode, node) {
		if one.volume != "" {
			volumes = append(volumes, one.volume)
		}
	}
	return volumes, true
}

// attachment is what is kept of each of the cluster's VolumeAttachments.
type attachment struct {
	metav1.ObjectMeta // name, UID and resource version

	node   string
	volume string // the PersistentVolume; empty for one that a pod names itself
}

func asAttachment(u *unstructured.Unstructured) *attachment {
	a := &attachment{ObjectMeta: metav1.ObjectMeta{Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()}}
	a.node, _, _ = unstructured.NestedString(u.Object, "spec", "nodeName")
	a.volume, _, _ = unstructured.NestedString(u.Object, "spec", "source", "persistentVolumeName")
	return a
}

// detachFor bounds the wait for volumes where there is no deadline. An EBS volume takes
// some seconds to detach; the attach-detach controller itself stops waiting after 6
// minutes.
const detachFor = 2 * time.Minute

// volumes are the PersistentVolumes that are still attached for pods that have left or have
// to leave; known is false as long as that cannot be told.
func (s *session) volumes(view plan.View) (volumes []string, known bool) {
	d := s.drainer
	uses := slices.ContainsFunc(view.Moving, plan.HasVolumes)
	if uses {
		d.attached.use(s.ctx, s.node, allNodes{})
	}
	volumes, known = d.attached.of(s.node)
	if len(volumes) == 0 {
		return nil, known
	}
	for _, decision := range view.Plan { // the volumes of pods that stay belong there
		if decision.Moves() || plan.Finished(decision.Pod) {
			continue // the kubelet calls an evicted pod finished before it is gone
		}
		for _, name := range plan.ClaimsOf(decision.Pod) {
			if c, ok := d.claims.get(s.ctx, name, s.node); ok {
				volumes = slices.DeleteFunc(volumes, func(v string) bool { return v == c.Volume })
			}
		}
	}
	return volumes, known
}
