package processes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// deletionsAtOnce keep an apiserver on two cores busy.
	deletionsAtOnce = 16

	// returnsAtMost is how often an object comes back before it counts as one of the control
	// plane itself, which has made it after the inventory: no controller of a test's objects
	// outlives the first round.
	returnsAtMost = 5

	// againAfter is how long controllers get to make what they make of the deletions.
	againAfter = 100 * time.Millisecond
)

// inventory is the UIDs of the objects that are not to be deleted.
type inventory map[types.UID]bool

// inventory is of all objects that there are.
func (a *api) inventory(ctx context.Context) (inventory, error) {
	resources, err := a.resources()
	if err != nil {
		return nil, err
	}
	found := inventory{}
	for _, r := range resources {
		objects, err := a.list(ctx, r)
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			found[o.UID] = true
		}
	}
	return found, nil
}

// empty deletes all objects but those of the inventory, at once and whatever holds them,
// and again what controllers make meanwhile, until there are none.
func (a *api) empty(ctx context.Context, keep inventory) error {
	resources, err := a.resources()
	if err != nil {
		return err
	}
	seen := map[string]int{}
	for {
		var left, namespaces []string
		for _, r := range resources {
			names, err := a.emptyOf(ctx, r, keep, seen)
			switch {
			case err != nil:
				return err
			case r.Resource == "namespaces":
				namespaces = names
			case r.Resource != "events": // which are of what happens here
				left = append(left, names...)
			}
		}
		if len(left) == 0 {
			if len(namespaces) == 0 {
				return nil
			}
			for _, name := range namespaces {
				if err := a.finalize(ctx, name); err != nil {
					return err
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s left: %w", strings.Join(append(left, namespaces...), ", "), context.Cause(ctx))
		case <-time.After(againAfter):
		}
	}
}

// emptyOf deletes the objects of one collection, and returns their names. How often each has been seen, it adds up.
func (a *api) emptyOf(ctx context.Context, r schema.GroupVersionResource, keep inventory, seen map[string]int) ([]string, error) {
	objects, err := a.list(ctx, r)
	if err != nil {
		return nil, err
	}
	var names []string
	var doomed []metav1.PartialObjectMetadata
	for _, o := range objects {
		id := r.Resource + " " + o.Namespace + "/" + o.Name
		switch {
		case keep[o.UID]:
			continue
		case seen[id] >= returnsAtMost && o.DeletionTimestamp == nil && r.Resource != "events":
			keep[o.UID] = true
			continue
		}
		seen[id]++
		names, doomed = append(names, o.Name), append(doomed, o)
	}
	if r.Resource == "events" { // too many for one request each, and none is worth keeping
		return names, a.removeEvents(ctx, r, doomed)
	}
	var deletions errgroup.Group
	deletions.SetLimit(deletionsAtOnce)
	for _, o := range doomed {
		deletions.Go(func() error { return a.remove(ctx, r, o) })
	}
	return names, deletions.Wait()
}

func (a *api) removeEvents(ctx context.Context, r schema.GroupVersionResource, events []metav1.PartialObjectMetadata) error {
	namespaces := map[string]bool{}
	for _, e := range events {
		namespaces[e.Namespace] = true
	}
	for namespace := range namespaces {
		if err := a.metadata.Resource(r).Namespace(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); unlessGone(err) != nil {
			return err
		}
	}
	return nil
}

// remove deletes an object, whatever waits for its end: nobody is there who would see to that.
func (a *api) remove(ctx context.Context, r schema.GroupVersionResource, o metav1.PartialObjectMetadata) error {
	objects := a.metadata.Resource(r).Namespace(o.Namespace)
	if len(o.Finalizers) > 0 {
		_, err := objects.Patch(ctx, o.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if unlessGone(err) != nil {
			return err
		}
	}
	// Also if it is being deleted: a pod would take its grace period, and nobody plays the
	// kubelet of a node that is gone.
	background := metav1.DeletePropagationBackground
	return unlessGone(objects.Delete(ctx, o.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64), PropagationPolicy: &background}))
}

// finalize ends a namespace that is being deleted and has nothing in it. Its controller would
// wait for five seconds before it looks. What is in a namespace that is gone could not be
// changed any more.
func (a *api) finalize(ctx context.Context, name string) error {
	_, err := a.CoreV1().Namespaces().Finalize(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.UpdateOptions{})
	return unlessGone(err)
}

// unlessGone: an object may be gone already, or be changed by another at this moment. The next
// round sees what is left.
func unlessGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (a *api) list(ctx context.Context, r schema.GroupVersionResource) ([]metav1.PartialObjectMetadata, error) {
	list, err := a.metadata.Resource(r).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // of a definition that is gone
	} else if err != nil {
		return nil, fmt.Errorf("list %s: %w", r.Resource, err)
	}
	return list.Items, nil
}

// resources are all collections whose objects can be listed and deleted, in the order in
// which they are to be emptied: first what refuses or changes requests, then namespaces, in
// which nothing can be made from then on, then what makes other objects, last the rest.
func (a *api) resources() ([]schema.GroupVersionResource, error) {
	groups, err := a.Discovery().ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("read the resources of the API: %w", err)
	}
	var found []schema.GroupVersionResource
	for _, g := range groups {
		version, err := schema.ParseGroupVersion(g.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("read the resources of the API: %w", err)
		}
		for _, r := range g.APIResources {
			// The events of the other group are the same ones. APIServices follow from the
			// definitions.
			again := version.Group != "" && r.Name == "events" || r.Name == "apiservices"
			if !again && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "delete") {
				found = append(found, version.WithResource(r.Name))
			}
		}
	}
	slices.SortStableFunc(found, func(a, b schema.GroupVersionResource) int { return turn(a) - turn(b) })
	return found, nil
}

func turn(r schema.GroupVersionResource) int {
	switch {
	case r.Group == "admissionregistration.k8s.io":
		return 0
	case r.Group == "" && r.Resource == "namespaces":
		return 1
	case slices.Contains([]string{"apps", "batch", "autoscaling"}, r.Group):
		return 2
	}
	return 3
}
