package main

import (
	"context"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"spot-handler/cmd/spot-handler/internal/trial"
	"spot-handler/drain"
	"spot-handler/drain/forecast"
)

// account is a service account of spot-handler in the cluster.
type account struct{ namespace, name string }

func (a account) user() string { return "system:serviceaccount:" + a.namespace + ":" + a.name }

// accounts are those under which a node is marked and its pods are moved.
type accounts struct {
	drains *account
	marks  map[string]account // by node; that of "" takes the notices of all
}

// accountsOf reads them from the pods of spot-handler.
func (c *caller) accountsOf(ctx context.Context) (accounts, error) {
	pods, err := c.installation(ctx)
	if err != nil {
		return accounts{}, err
	}
	found := accounts{marks: map[string]account{}}
	for _, pod := range pods {
		if pod.wrong != nil || pod.dryRun {
			continue
		}
		own := account{pod.Namespace, pod.Spec.ServiceAccountName}
		if reconciles(pod.config) && (pod.fleet() || found.drains == nil) {
			found.drains = &own
		}
		switch pod.mode {
		case modeQueue:
			found.marks[""] = own
		case modeIMDS:
			found.marks[pod.Spec.NodeName] = own
		}
	}
	return found, nil
}

// nodeOfToken is where a pod's token names the pod's node, which admission policies look at.
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#additional-metadata-in-pod-bound-tokens
const nodeOfToken = "authentication.kubernetes.io/node-name"

// as is the caller in the shoes of a service account, whose requests change nothing. If the caller
// must not step into them, it is the caller itself. who says which.
func (c *caller) as(ctx context.Context, a *account, node string) (dry *caller, who string, err error) {
	conf := rest.CopyConfig(c.conf)
	conf.Wrap(trial.DryRun)
	switch {
	case a == nil:
		who = "yourself, as no pod of spot-handler was found whose service account is the one that does this"
	case !c.mayImpersonate(ctx, "serviceaccounts", "", a.namespace, a.name) || node != "" && !c.mayImpersonate(ctx, "userextras", nodeOfToken, "", node):
		who = "yourself, as you are not allowed to impersonate " + a.user()
	default:
		conf.Impersonate = rest.ImpersonationConfig{UserName: a.user()}
		if node != "" {
			conf.Impersonate.Extra = map[string][]string{nodeOfToken: {node}}
		}
		who = a.user()
	}
	dry, err = newCaller(conf)
	return dry, who, err
}

// mayImpersonate asks the API server.
func (c *caller) mayImpersonate(ctx context.Context, resource, subresource, namespace, name string) bool {
	group := ""
	if resource == "userextras" {
		group = "authentication.k8s.io"
	}
	review, err := c.reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "impersonate", Group: group, Resource: resource, Subresource: subresource, Namespace: namespace, Name: name,
		},
	}}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed
}

// try sends what the daemon would send about the lost nodes and their pods, besides the replacements,
// which have been tried.
func (a *asker) try(ctx context.Context, first map[string][]drain.Decision, f forecast.Forecast) error {
	forced := map[types.NamespacedName]bool{}
	for _, p := range f.Pods {
		if p.Outcome == forecast.Forced {
			forced[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = true
		}
	}
	for _, l := range f.Nodes {
		d := a.dooms[l.Name]
		if d.nothing != "" {
			continue
		}
		marker, err := a.marker(ctx, l.Name)
		if err != nil {
			return err
		}
		if err := a.trial.Mark(ctx, marker.nodes, d.before, d.record); err != nil {
			return err
		}
		if err := a.trial.Drain(ctx, a.drainer.core, first[l.Name], time.Now(), func(pod *corev1.Pod) bool {
			return forced[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]
		}); err != nil {
			return err
		}
	}
	return nil
}

// marker is in the shoes of the account that marks the node.
func (a *asker) marker(ctx context.Context, node string) (*caller, error) {
	own, bound := a.accounts.marks[node], node
	if own.name == "" {
		own, bound = a.accounts.marks[""], ""
	}
	if own.name == "" || a.accounts.drains != nil && own == *a.accounts.drains {
		return a.drainer, nil
	}
	marker, who, err := a.caller.as(ctx, &own, bound)
	a.trial.As(who)
	return marker, err
}
