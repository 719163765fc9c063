package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/drain"
	"spot-handler/drain/forecast"
)

// Reader reads a cluster once, with the rights of whoever asks.
type Reader struct {
	Core    rest.Interface // core/v1
	Policy  rest.Interface // policy/v1
	Dynamic dynamic.Interface

	// Namespace, if it is set, is the only one whose pods are read.
	Namespace string
}

// atOnce is how many lists are read at the same time.
const atOnce = 4

// ErrNothing says that there is nothing to make a forecast from.
var ErrNothing = errors.New("nodes and pods could not be read")

// Read reads all that a forecast is made from, except which nodes are lost and by which settings
// they are drained. What could not be read is missing, and Input.Unread says why; an error is
// ErrNothing.
func (r Reader) Read(ctx context.Context) (forecast.Input, error) {
	in := forecast.Input{
		At: time.Now(), Deployments: map[types.NamespacedName]drain.Deployment{}, Owners: map[types.UID]forecast.Owner{},
		Surroundings: map[string]drain.Surroundings{}, Shared: map[types.NamespacedName]bool{}, Zones: map[types.NamespacedName]string{},
		Attached: map[string]int{}, Namespaces: map[string]drain.Wishes{}, Assumptions: forecast.Assumed(),
	}
	var mu sync.Mutex
	var requests errgroup.Group
	requests.SetLimit(atOnce)
	around := map[string][]*unstructured.Unstructured{}
	volumes := map[string]types.NamespacedName{} // of claims
	zones := map[string]string{}                 // of volumes
	for _, part := range []func() error{
		func() error { return r.nodes(ctx, &in.Nodes) },
		func() error { return r.pods(ctx, &in.Pods) },
		func() error { return r.budgets(ctx, &in.Budgets) },
		func() error {
			return r.each(ctx, apps("deployments"), "", func(u *unstructured.Unstructured) {
				if d, err := drain.ReadDeployment(u); err == nil {
					in.Deployments[types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}] = d
				}
			})
		},
		func() error {
			return r.each(ctx, apps("statefulsets"), "", func(u *unstructured.Unstructured) {
				mu.Lock()
				defer mu.Unlock()
				in.Owners[u.GetUID()] = ownerOf(u)
			})
		},
		func() error { // of no Deployment
			return r.each(ctx, apps("replicasets"), "!pod-template-hash", func(u *unstructured.Unstructured) {
				mu.Lock()
				defer mu.Unlock()
				in.Owners[u.GetUID()] = ownerOf(u)
				around[u.GetNamespace()] = append(around[u.GetNamespace()], u)
			})
		},
		func() error {
			return r.each(ctx, apps("daemonsets"), "", func(u *unstructured.Unstructured) {
				mu.Lock()
				defer mu.Unlock()
				around[u.GetNamespace()] = append(around[u.GetNamespace()], u)
			})
		},
		func() error {
			return r.each(ctx, core("resourcequotas"), "", func(u *unstructured.Unstructured) {
				mu.Lock()
				defer mu.Unlock()
				around[u.GetNamespace()] = append(around[u.GetNamespace()], u)
			})
		},
		func() error {
			return r.each(ctx, core("persistentvolumeclaims"), "", func(u *unstructured.Unstructured) {
				name := types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
				in.Shared[name] = shared(u)
				if volume, _, _ := unstructured.NestedString(u.Object, "spec", "volumeName"); volume != "" {
					volumes[volume] = name
				}
			})
		},
		func() error {
			return r.each(ctx, core("persistentvolumes"), "", func(u *unstructured.Unstructured) { zones[u.GetName()] = zoneOf(u) })
		},
		func() error {
			return r.each(ctx, core("namespaces"), "", func(u *unstructured.Unstructured) {
				said := u.GetAnnotations()
				in.Namespaces[u.GetName()] = drain.Wishes{When: drain.When(said[drain.WhenAnnotation]), Blocked: drain.BlockedPolicy(said[drain.BlockedAnnotation])}
			})
		},
		func() error {
			return r.each(ctx, schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}, "", func(u *unstructured.Unstructured) {
				node, _, _ := unstructured.NestedString(u.Object, "spec", "nodeName")
				in.Attached[node]++
			})
		},
	} {
		requests.Go(func() error {
			if err := part(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				in.Unread = append(in.Unread, err.Error())
			}
			return nil
		})
	}
	_ = requests.Wait() // what failed is in Unread
	slices.Sort(in.Unread)
	if len(in.Nodes) == 0 || in.Pods == nil {
		return in, fmt.Errorf("%w: %s", ErrNothing, strings.Join(in.Unread, "; "))
	}
	for _, p := range in.Pods {
		if _, ok := in.Surroundings[p.Namespace]; !ok {
			in.Surroundings[p.Namespace] = drain.Around(around[p.Namespace])
		}
	}
	for volume, claim := range volumes {
		in.Zones[claim] = zones[volume]
	}
	in.Assumptions.ReadyOf = forecast.ReadyOf(in.Pods)
	return in, nil
}

func apps(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}
}

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

// clusterWide are the resources without a namespace.
var clusterWide = []string{"persistentvolumes", "namespaces", "volumeattachments"}

// each reads a list page by page.
func (r Reader) each(ctx context.Context, of schema.GroupVersionResource, selector string, found func(*unstructured.Unstructured)) error {
	var client dynamic.ResourceInterface = r.Dynamic.Resource(of)
	if r.Namespace != "" && !slices.Contains(clusterWide, of.Resource) {
		client = r.Dynamic.Resource(of).Namespace(r.Namespace)
	}
	return console.Objects(ctx, client, of.Resource, selector, found)
}

func (r Reader) nodes(ctx context.Context, all *[]*corev1.Node) error {
	return console.Pages(ctx, r.Core, "", "nodes", "", func(page *corev1.NodeList) {
		for i := range page.Items {
			*all = append(*all, leanNode(&page.Items[i]))
		}
	})
}

func (r Reader) pods(ctx context.Context, all *[]*corev1.Pod) error {
	return console.Pages(ctx, r.Core, r.Namespace, "pods", "", func(page *corev1.PodList) {
		if *all == nil {
			*all = []*corev1.Pod{}
		}
		for i := range page.Items {
			if pod := &page.Items[i]; !drain.Finished(pod) {
				*all = append(*all, lean(pod))
			}
		}
	})
}

func (r Reader) budgets(ctx context.Context, all *[]*policyv1.PodDisruptionBudget) error {
	return console.Pages(ctx, r.Policy, r.Namespace, "poddisruptionbudgets", "", func(page *policyv1.PodDisruptionBudgetList) {
		for i := range page.Items {
			*all = append(*all, &page.Items[i])
		}
	})
}
