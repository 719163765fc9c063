package placeholder

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/readcache"
)

const fieldManager = "spot-handler"

const (
	// perNode is how many requests are under way for one node.
	perNode = 4

	// atOnce is how many are under way for all nodes together. A burst has thousands of pods,
	// and their placeholders are not so urgent that they could hold up everything else, such
	// as cordons and the renewal of the leader's lease.
	atOnce = 16

	// nodesAtOnce is for how many nodes placeholders are made at the same time. For a node with
	// many pods that takes a while, and holds up the caller, who might have drains to attend
	// to. This many nodes keep atOnce requests under way.
	nodesAtOnce = 8
)

// recheck is how long we believe the API server's refusal to make placeholders, which only a
// change of the installation ends.
const recheck = time.Minute

// makeAll makes the placeholders of the order. Those that already exist count as made, as do
// those whose place a pod has taken, so it can be repeated at any point.
func (b *Backend) makeAll(ctx context.Context, o order, r interruption.Replacement) (interruption.Replacement, error) {
	b.start()
	b.emptied.Remove(nameOf(o.instance))
	owner, err := b.owner(ctx, o)
	if err != nil {
		return b.notMade(o, r, err)
	}
	b.owners.Add(label(o.instance), o.node.Name, patience)
	g, made := errgroup.WithContext(ctx)
	g.SetLimit(perNode)
	for _, pod := range o.pods {
		g.Go(func() error { return b.make(made, o, owner, pod) })
	}
	err = g.Wait()
	if err == nil {
		return r, nil
	}
	answer, err := b.notMade(o, r, err)
	if err == nil {
		err = b.removeAll(ctx, r.Name)
	}
	return answer, err
}

// errNotOurs marks a PodTemplate of our name that somebody else has made.
var errNotOurs = errors.New("exists and is not ours")

// owner makes the PodTemplate that the placeholders belong to, or finds it.
func (b *Backend) owner(ctx context.Context, o order) (*corev1.PodTemplate, error) {
	t, err := b.opts.Templates.Create(ctx, b.template(o), metav1.CreateOptions{FieldManager: fieldManager})
	if !apierrors.IsAlreadyExists(err) {
		return t, err
	}
	name := nameOf(o.instance)
	if t, err = b.opts.Templates.Get(ctx, name, metav1.GetOptions{}); err != nil {
		return nil, fmt.Errorf("get PodTemplate %q: %w", name, err)
	}
	if t.Labels[Label] != label(o.instance) || len(t.OwnerReferences) != 1 {
		return nil, fmt.Errorf("PodTemplate %q %w", name, errNotOurs)
	}
	if t.OwnerReferences[0].UID != o.node.UID {
		// The Node was made again; the garbage collector is about to remove what belonged to the
		// old one.
		return nil, fmt.Errorf("make PodTemplate %q: that of an earlier Node is still there", name)
	}
	return t, nil
}

// make makes the placeholder of a pod.
func (b *Backend) make(ctx context.Context, o order, owner *corev1.PodTemplate, pod *corev1.Pod) error {
	p, instance := b.placeholder(o, owner, pod), label(o.instance)
	if b.cache.has(instance, p.Name) || b.cache.wasTaken(owner.UID, p.Name) {
		return nil
	}
	if err := b.requests.Acquire(ctx, 1); err != nil {
		return err
	}
	defer b.requests.Release(1)
	b.cache.expect(instance, p.Name, o.node.Name)
	_, err := b.opts.Pods.Create(ctx, p, metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		b.cache.forget(instance, p.Name)
		return err
	}
	return nil
}

// notMade separates what would fail again, which is an answer, from what might not.
func (b *Backend) notMade(o order, r interruption.Replacement, err error) (interruption.Replacement, error) {
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		// No permission, no PriorityClass, no namespace, a quota that is used up, or a
		// policy: the API server says which.
		reason := fmt.Sprintf("placeholders cannot be made in namespace %s: %s", Namespace, provisioner.Cause(err))
		b.refuse(reason)
		return unsupported(reason), nil
	case errors.Is(err, errNotOurs), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return provisioner.Failed(r, err.Error()), nil
	}
	b.owners.Add(label(o.instance), o.node.Name, patience)
	return r, fmt.Errorf("make placeholders of %s: %w", o.instance, err)
}

// removeAll removes the PodTemplate of that name; the garbage collector then removes its
// placeholders.
func (b *Backend) removeAll(ctx context.Context, name string) error {
	instance := strings.TrimPrefix(name, namePrefix)
	err := b.opts.Templates.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
	switch {
	case err == nil, apierrors.IsNotFound(err):
		b.cache.forget(instance, "")
		b.owners.Remove(instance)
		return nil
	case apierrors.IsForbidden(err):
		b.owners.Remove(instance)
		if b.said.First(provisioner.Cause(err)) {
			b.log.Warn().Str("reason", provisioner.Cause(err)).Msg("placeholders not removed: they end by themselves")
		}
		return nil
	}
	return fmt.Errorf("delete PodTemplate %q: %w", name, err)
}

// remove removes one placeholder.
func (b *Backend) remove(ctx context.Context, pod *corev1.Pod) error {
	if _, again := b.cache.deleted.LoadOrStore(pod.UID, nil); again {
		return nil
	}
	if err := b.requests.Acquire(ctx, 1); err != nil {
		b.cache.deleted.Delete(pod.UID)
		return err
	}
	defer b.requests.Release(1)
	err := b.opts.Pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		b.cache.deleted.Delete(pod.UID)
		return fmt.Errorf("delete placeholder %q: %w", pod.Name, err)
	}
	return nil
}

// refuse remembers why the API server refused placeholders, to spare it a burst of requests that
// would fail the same way.
func (b *Backend) refuse(reason string) {
	b.refusals.Put("", readcache.Answer[string]{Value: reason, Asked: time.Now()})
	if b.said.First(reason) {
		b.log.Warn().Str("reason", reason).Msg("no placeholders")
	}
}
