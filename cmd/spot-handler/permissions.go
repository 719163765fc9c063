package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"spot-handler/cmd/spot-handler/internal/audit"
	"spot-handler/drain/plan"
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
	surges := cfg.policy.Strategy == plan.StrategySurge
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
		add("karpenter.sh", "nodepools", "list")
		add("karpenter.sh", "nodeclaims", "create", "get", "list", "watch", "patch", "delete")
	}
	return list
}

// asksKarpenter reports whether replacements may come from Karpenter.
func asksKarpenter(cfg settings) bool {
	return cfg.provisioner == provisioner.Auto || cfg.provisioner == provisioner.Karpenter
}

// permissionTimeout is for all of the questions together, which take milliseconds: before
// they are answered nothing works, not even the liveness probe.
const permissionTimeout = 5 * time.Second

// checkPermissions asks about each permission that is needed to start, and returns all that are
// missing as an error that wraps errUsage. Any other error means that the API server did not answer.
func checkPermissions(ctx context.Context, ask audit.Ask, list []audit.Permission) error {
	ctx, cancel := context.WithTimeout(ctx, permissionTimeout)
	defer cancel()
	missing, err := audit.Missing(ctx, slices.DeleteFunc(list, func(p audit.Permission) bool { return !p.ToStart }), ask)
	if err != nil || len(missing) == 0 {
		return err
	}
	var errs []error
	for _, p := range missing {
		errs = append(errs, fmt.Errorf("not allowed to %s: add it to the role of the service account", p))
	}
	return fmt.Errorf("%w: missing permissions:\n%w", errUsage, errors.Join(errs...))
}

// own asks about the permissions of this process.
func (c *clients) own(ctx context.Context, to *authorizationv1.ResourceAttributes) (allowed bool, err error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: to}}
	err = c.reviews.Post().Resource("selfsubjectaccessreviews").Body(review).Do(ctx).Into(review)
	return err == nil && review.Status.Allowed, err
}
