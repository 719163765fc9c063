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

	"spot-handler/cmd/spot-handler/internal/audit"
	"spot-handler/drain"
	"spot-handler/handler/provisioner"
)

// permissionsOf lists what a mode needs, and first what it cannot do without. What the provisioner
// needs is not part of that: without it a node is drained with no replacement, and that is said.
func permissionsOf(cfg settings, leaseNamespace string) (list []audit.Permission) {
	toStart, namespace := true, ""
	add := func(group, resource string, verbs ...string) {
		for _, verb := range verbs {
			list = append(list, audit.Permission{Verb: verb, Group: group, Resource: resource, Namespace: namespace, ToStart: toStart})
		}
	}
	surges := cfg.policy.Strategy == drain.Surge
	add("", "nodes", "get", "list", "watch")
	if cfg.dryRun || reconciles(cfg) {
		add("", "pods", "list")
		add("policy", "poddisruptionbudgets", "list")
		if surges {
			add("apps", "deployments", "get")  // whether to put surged pods back
			add("apps", "replicasets", "list") // who might adopt them
			add("apps", "daemonsets", "list")  // the same
			add("", "resourcequotas", "list")  // whether they have room for replacement pods
		}
	}
	if cfg.dryRun {
		return list
	}
	add("", "nodes", "patch")
	if reconciles(cfg) {
		add("", "pods", "watch", "delete")
		add("", "pods/eviction", "create")
		add("", "pods/status", "patch") // to carry out a granted eviction, as delete is
		add("policy", "poddisruptionbudgets", "watch")
		if surges {
			add("", "pods", "patch")
			add("apps", "deployments", "list", "watch")
			add("apps", "replicasets", "get") // whether to put surged pods back
		}
	}
	if cfg.fleet() && cfg.leaderElect {
		namespace = leaseNamespace
		add("coordination.k8s.io", "leases", "get", "create", "update")
	}
	if !reconciles(cfg) {
		return list
	}
	toStart, namespace = false, ""
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

// checkPermissions asks the API server about each that is needed to start, and returns all that are
// missing, as an error that wraps errUsage. Another error means that it could not be asked.
func checkPermissions(ctx context.Context, client reviewClient, list []audit.Permission) error {
	ctx, cancel := context.WithTimeout(ctx, permissionTimeout)
	defer cancel()
	missing := make([]error, len(list))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i, p := range list {
		if !p.ToStart {
			continue
		}
		g.Go(func() error {
			resource, subresource, _ := strings.Cut(p.Resource, "/")
			review, err := client.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: p.Verb, Group: p.Group, Resource: resource, Subresource: subresource, Namespace: p.Namespace,
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
