package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain"
	"spot-handler/handler/provisioner"
)

// permission is something that the process has to be allowed to do.
type permission struct{ verb, group, resource, namespace string }

func (p permission) String() string {
	where, resource := "", p.resource
	if p.group != "" {
		resource += "." + p.group
	}
	if p.namespace != "" {
		where = " in namespace " + p.namespace
	}
	return p.verb + " " + resource + where
}

// permissionsOf lists what a mode cannot do without. What the provisioner needs is not among
// them: without it a node is drained with no replacement, and that is said; see optionalPermissionsOf.
func permissionsOf(cfg settings, leaseNamespace string) []permission {
	list := []permission{
		{verb: "get", resource: "nodes"},
		{verb: "list", resource: "nodes"},
		{verb: "watch", resource: "nodes"},
	}
	if cfg.dryRun {
		list = append(list, permission{verb: "list", resource: "pods"},
			permission{verb: "list", group: "policy", resource: "poddisruptionbudgets"})
		if cfg.policy.Strategy == drain.Surge {
			list = append(list, permission{verb: "get", group: "apps", resource: "deployments"},
				permission{verb: "list", group: "apps", resource: "replicasets"},
				permission{verb: "list", group: "apps", resource: "daemonsets"},
				permission{verb: "list", resource: "resourcequotas"})
		}
		return list
	}
	list = append(list, permission{verb: "patch", resource: "nodes"})
	if reconciles(cfg) {
		list = append(list,
			permission{verb: "list", resource: "pods"},
			permission{verb: "watch", resource: "pods"},
			permission{verb: "create", resource: "pods/eviction"},
			permission{verb: "patch", resource: "pods/status"}, // to carry out a granted eviction
			permission{verb: "delete", resource: "pods"},       // the same
			permission{verb: "list", group: "policy", resource: "poddisruptionbudgets"},
			permission{verb: "watch", group: "policy", resource: "poddisruptionbudgets"},
		)
	}
	if reconciles(cfg) && cfg.policy.Strategy == drain.Surge {
		list = append(list,
			permission{verb: "patch", resource: "pods"}, // to surge them
			permission{verb: "list", group: "apps", resource: "deployments"},
			permission{verb: "watch", group: "apps", resource: "deployments"},
			permission{verb: "get", group: "apps", resource: "deployments"},  // whether to put them back
			permission{verb: "get", group: "apps", resource: "replicasets"},  // the same
			permission{verb: "list", group: "apps", resource: "replicasets"}, // who might adopt them
			permission{verb: "list", group: "apps", resource: "daemonsets"},  // the same
			permission{verb: "list", resource: "resourcequotas"},             // whether they have room for replacement pods
		)
	}
	if cfg.fleet() && cfg.leaderElect {
		for _, verb := range []string{"get", "create", "update"} {
			list = append(list, permission{verb: verb, group: "coordination.k8s.io", resource: "leases", namespace: leaseNamespace})
		}
	}
	return list
}

// optionalPermissionsOf lists what a mode can do without, and does worse.
func optionalPermissionsOf(cfg settings) (list []permission) {
	if cfg.dryRun || !reconciles(cfg) {
		return nil
	}
	add := func(group, resource string, verbs ...string) {
		for _, verb := range verbs {
			list = append(list, permission{verb: verb, group: group, resource: resource})
		}
	}
	add("", "events", "create", "patch")
	add("", "namespaces", "get")
	add("", "persistentvolumeclaims", "get")
	add("storage.k8s.io", "volumeattachments", "list", "watch")
	if cfg.workloadNotices {
		add("networking.k8s.io", "servicecidrs", "list")
	}
	if asksKarpenter(cfg) {
		add("karpenter.sh", "nodepools", "get", "list")
		add("karpenter.sh", "nodeclaims", "create", "get", "list", "watch", "patch", "delete")
	}
	return list
}

// asksKarpenter reports whether replacements may come from Karpenter.
func asksKarpenter(cfg settings) bool {
	return cfg.provisioner == provisioner.Auto || cfg.provisioner == provisioner.Karpenter
}

// reviewClient is the subset of the API that permissions are checked with.
type reviewClient interface {
	Create(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error)
}

// permissionTimeout is for all of the questions together, which take milliseconds: before
// they are answered nothing works, not even the liveness probe.
const permissionTimeout = 5 * time.Second

// checkPermissions asks the API server about each and returns all that are missing,
// as an error that wraps errUsage. Another error means that it could not be asked.
func checkPermissions(ctx context.Context, client reviewClient, list []permission) error {
	ctx, cancel := context.WithTimeout(ctx, permissionTimeout)
	defer cancel()
	missing := make([]error, len(list))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i, p := range list {
		g.Go(func() error {
			resource, subresource, _ := strings.Cut(p.resource, "/")
			review, err := client.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: p.verb, Group: p.group, Resource: resource, Subresource: subresource, Namespace: p.namespace,
				}},
			}, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("check permission to %s: %w", p, err)
			}
			if !review.Status.Allowed {
				missing[i] = fmt.Errorf("not allowed to %s: add it to the role of the service account", p)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := errors.Join(missing...); err != nil {
		return fmt.Errorf("%w: missing permissions:\n%w", errUsage, err)
	}
	return nil
}
