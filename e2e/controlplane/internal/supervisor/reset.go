package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	anyJSON = "application/json"

	// metadataOnly asks for no more than the metadata of a list.
	// https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
	metadataOnly = anyJSON + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

	// deletionsAtOnce keep an apiserver on two cores busy.
	deletionsAtOnce = 16

	// returnsAtMost is how often an object comes back before it counts as one of the control
	// plane itself, which has made it after the inventory: no controller of a test's objects
	// outlives the first round.
	returnsAtMost = 5

	// againAfter is how long controllers get to make what they make of the deletions.
	againAfter = 100 * time.Millisecond
)

// resource is a collection of the API, such as /api/v1 pods.
type resource struct {
	base, name string // path of the group and version; plural
	namespaced bool
}

func (r resource) all() string { return r.base + "/" + r.name }

func (r resource) path(namespace, name string) string {
	if r.namespaced {
		return r.base + "/namespaces/" + namespace + "/" + r.name + "/" + name
	}
	return r.all() + "/" + name
}

// object is what a reset needs to know of one.
type object struct {
	Metadata struct {
		Name, Namespace, UID string
		DeletionTimestamp    *time.Time
		Finalizers           []string
	}
}

// inventory is the UIDs of the objects that are not to be deleted.
type inventory map[string]bool

// inventory is of all objects that there are.
func (a *api) inventory(ctx context.Context) (inventory, error) {
	resources, err := a.resources(ctx)
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
			found[o.Metadata.UID] = true
		}
	}
	return found, nil
}

// empty deletes all objects but those of the inventory, at once and whatever holds them,
// and again what controllers make meanwhile, until there are none.
func (a *api) empty(ctx context.Context, keep inventory) error {
	resources, err := a.resources(ctx)
	if err != nil {
		return err
	}
	seen := map[string]int{}
	for {
		var left, namespaces []string
		for _, r := range resources {
			paths, err := a.emptyOf(ctx, r, keep, seen)
			switch {
			case err != nil:
				return err
			case r.name == "namespaces":
				namespaces = paths
			case r.name != "events": // which are of what happens here
				left = append(left, paths...)
			}
		}
		if len(left) == 0 {
			if len(namespaces) == 0 {
				return nil
			}
			for _, path := range namespaces {
				if err := a.finalize(ctx, path); err != nil {
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

// emptyOf deletes the objects of one collection, and returns where they were. How often each
// has been seen, it adds up.
func (a *api) emptyOf(ctx context.Context, r resource, keep inventory, seen map[string]int) ([]string, error) {
	objects, err := a.list(ctx, r)
	if err != nil {
		return nil, err
	}
	objects = slices.DeleteFunc(objects, func(o object) bool { return keep[o.Metadata.UID] })
	paths := map[string]object{}
	for _, o := range objects {
		path := r.path(o.Metadata.Namespace, o.Metadata.Name)
		if r.name == "events" { // too many for one request each, and none is worth keeping
			path, o.Metadata.Finalizers = strings.TrimSuffix(r.path(o.Metadata.Namespace, ""), "/"), nil
		} else if seen[path]++; seen[path] > returnsAtMost && o.Metadata.DeletionTimestamp == nil {
			keep[o.Metadata.UID] = true
			continue
		}
		paths[path] = o
	}
	var (
		wg   sync.WaitGroup
		slot = make(chan struct{}, deletionsAtOnce)
		mu   sync.Mutex
		errs []error
	)
	for path, o := range paths {
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			if err := a.remove(ctx, r, path, o); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return slices.Collect(maps.Keys(paths)), errors.Join(errs...)
}

// remove deletes an object, whatever waits for its end: nobody is there who would see to that.
func (a *api) remove(ctx context.Context, r resource, path string, o object) error {
	if len(o.Metadata.Finalizers) > 0 {
		if err := a.change(ctx, http.MethodPatch, path, "application/merge-patch+json", `{"metadata":{"finalizers":null}}`); err != nil {
			return err
		}
	}
	// Also if it is being deleted: a pod would take its grace period, and nobody plays the
	// kubelet of a node that is gone.
	const now = `{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0,"propagationPolicy":"Background"}`
	return a.change(ctx, http.MethodDelete, path, anyJSON, now)
}

// finalize ends a namespace that is being deleted and has nothing in it. Its controller would
// wait for five seconds before it looks. What is in a namespace that is gone could not be
// changed any more.
func (a *api) finalize(ctx context.Context, path string) error {
	_, name, _ := strings.Cut(path, "/namespaces/")
	done := fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q},"spec":{"finalizers":[]}}`, name)
	return a.change(ctx, http.MethodPut, path+"/finalize", anyJSON, done)
}

// change makes a request about an object that may be gone already, or be changed by
// another at this moment: the next round sees what is left.
func (a *api) change(ctx context.Context, method, path, contentType, body string) error {
	_, status, err := a.request(ctx, method, path, anyJSON, contentType, []byte(body))
	if status == http.StatusNotFound || status == http.StatusConflict {
		return nil
	}
	return err
}

func (a *api) list(ctx context.Context, r resource) ([]object, error) {
	text, status, err := a.request(ctx, http.MethodGet, r.all(), metadataOnly, anyJSON, nil)
	if status == http.StatusNotFound {
		return nil, nil // of a definition that is gone
	} else if err != nil {
		return nil, err
	}
	var list struct{ Items []object }
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read the list of %s: %w", r.name, err)
	}
	return list.Items, nil
}

// resources are all collections whose objects can be listed and deleted, in the order in
// which they are to be emptied: first what refuses or changes requests, then namespaces, in
// which nothing can be made from then on, then what makes other objects, last the rest.
func (a *api) resources(ctx context.Context) ([]resource, error) {
	bases := []string{"/api/v1"}
	text, _, err := a.request(ctx, http.MethodGet, "/apis", anyJSON, anyJSON, nil)
	if err != nil {
		return nil, err
	}
	var groups struct {
		Groups []struct{ PreferredVersion struct{ GroupVersion string } }
	}
	if err := json.Unmarshal(text, &groups); err != nil {
		return nil, fmt.Errorf("read the groups of the API: %w", err)
	}
	for _, g := range groups.Groups {
		bases = append(bases, "/apis/"+g.PreferredVersion.GroupVersion)
	}
	var found []resource
	for _, base := range bases {
		text, status, err := a.request(ctx, http.MethodGet, base, anyJSON, anyJSON, nil)
		if status == http.StatusNotFound {
			continue // a definition has just gone
		} else if err != nil {
			return nil, err
		}
		var list struct {
			Resources []struct {
				Name       string
				Namespaced bool
				Verbs      []string
			}
		}
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, fmt.Errorf("read the resources of %s: %w", base, err)
		}
		for _, r := range list.Resources {
			// The events of the other group are the same ones. APIServices follow from the
			// definitions.
			again := base != "/api/v1" && r.Name == "events" || r.Name == "apiservices"
			if !again && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "delete") {
				found = append(found, resource{base: base, name: r.Name, namespaced: r.Namespaced})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b resource) int { return a.turn() - b.turn() })
	return found, nil
}

func (r resource) turn() int {
	switch {
	case strings.HasPrefix(r.base, "/apis/admissionregistration.k8s.io/"):
		return 0
	case strings.HasPrefix(r.base, "/apis/apps/"), strings.HasPrefix(r.base, "/apis/batch/"), strings.HasPrefix(r.base, "/apis/autoscaling/"):
		return 2
	case r.name == "namespaces":
		return 1
	}
	return 3
}
