package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner/karpenter"
)

// Options say what is judged, and by which settings.
type Options struct {
	// Margin is kept free before the deadline by the daemon.
	Margin time.Duration
	// MaxShare is how many percent of a workload may be on one offering.
	MaxShare int
	// AtRisk reports whether EC2 might take the node at two minutes' notice; nil takes those that
	// are by [nodes.AtRisk].
	AtRisk func(*corev1.Node) bool
}

// arrival is how long the notice itself and the first eviction are taken to need.
const arrival = 10 * time.Second

// NewSnapshot keeps what the checks of workloads need from a cluster that was read.
func NewSnapshot(c cluster.Cluster, o Options) Snapshot {
	s := Snapshot{
		At:       c.At,
		MaxShare: o.MaxShare,
		Nodes:    c.Nodes,
		Budgets:  c.Budgets,
		Idle:     c.Idle,
		Grace:    interruption.SpotNotice - arrival - o.Margin,
		OnDemand: nodes.OnDemandLabels[0],
	}
	atRisk := o.AtRisk
	if atRisk == nil {
		atRisk = nodes.AtRisk(c.Nodes)
	}
	safe := map[string]bool{}
	for _, n := range c.Nodes {
		if label, onDemand := nodes.OnDemand(n); onDemand {
			s.OnDemand = label
		}
		safe[n.Name] = !atRisk(n)
	}
	// This asks the rules, not a Fleet, which says what a drain would do right now. A Fleet would have to be shown a
	// cluster that doesn't exist: without disruption budgets, as those have checks of their own, without namespaces'
	// preferences, which are not read, and with Deployments that are never rolled out. It would also plan each of
	// thousands of nodes three times before it knows all that it asks for, which takes seconds.
	around := plan.Situation{
		NodeState: plan.NodeState{
			Taint:    marks.Taint(interruption.Record{Kind: interruption.SpotInterruption}),
			Deadline: c.At.Add(interruption.SpotNotice - arrival), // without one, some pods would stay
		},
		Policy:      plan.Policy{Strategy: plan.StrategySurge, Margin: o.Margin},
		Shared:      c.Shared,
		Constraints: c.Constraints,
		Deployments: map[types.NamespacedName]plan.DeploymentState{},
	}
	if c.Deployments != nil {
		s.Deployments = map[Owned]*Deployment{}
	}
	for name, d := range c.Deployments {
		if w, err := d.Specified(); err == nil {
			around.Deployments[name] = w
			s.Deployments[Owned{name.Namespace, "deployment/" + name.Name}] = &Deployment{
				Replicas: d.Replicas(),
				MinReady: int(d.Spec.MinReadySeconds),
				Refuses:  w.Refuses,
			}
		}
	}
	s.Replicas = map[Owned]int{}
	theirs := map[string][]*corev1.Pod{} // by node
	for _, pod := range c.Pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		s.Replicas[ownerOf(pod)]++
		if pod.Spec.NodeName == "" || safe[pod.Spec.NodeName] {
			continue
		}
		theirs[pod.Spec.NodeName] = append(theirs[pod.Spec.NodeName], pod)
		if name := plan.DeploymentOf(pod); s.Deployments != nil && around.Deployments[name].Selector == nil {
			around.Deployments[name] = plan.DeploymentState{} // there is none of that name
		}
	}
	for _, node := range slices.Sorted(maps.Keys(theirs)) {
		around.Pods = theirs[node]
		for _, d := range plan.Plan(c.At, around) {
			if d.Moves() {
				_, ready := plan.Ready(d.Pod)
				s.Pods = append(s.Pods, Pod{d.Pod, ownerOf(d.Pod), d.Surge || !ready, d.NoSurge, c.ZoneOf(d.Pod)})
			}
		}
	}
	return s
}

// Reader reads what is about the cluster, and not about the workloads of one namespace.
type Reader struct {
	Lists   cluster.Lister
	Dynamic dynamic.Interface
	// Fallbacks are [karpenter.Options.FallbackNodePools] of the daemon, and WithoutKarpenter
	// says that Karpenter is not asked for replacements.
	Fallbacks        map[string]string
	WithoutKarpenter bool
	Reviews          rest.Interface // of authorization.k8s.io
	// Daemons are the pods of spot-handler, as they and their settings have it.
	Daemons func(context.Context) ([]Daemon, error)
	// Offerings reads what is remembered of them, for these nodes.
	Offerings func(ctx context.Context, of []*corev1.Node) (*offerings.Memory, error)
}

// Read adds to the snapshot. What could not be read is missing, and unread says why.
func (r Reader) Read(ctx context.Context, s *Snapshot) (unread []string) {
	var errs []error
	var err error
	s.Daemons, err = r.Daemons(ctx)
	errs = append(errs, err)
	if !r.WithoutKarpenter {
		memory, err := r.Offerings(ctx, s.Nodes)
		s.TooMany = memory.TooMany()
		errs = append(errs, err) // right after the same of the daemons
		s.Outlooks, err = karpenter.Outlooks(ctx, r.Dynamic, r.Fallbacks)
		errs = append(errs, err)
	}
	err = errors.Join(append(errs, r.others(ctx, s), r.permissions(ctx, s), r.flowSchemas(ctx, s), r.policies(ctx, s), r.balanced(ctx, s))...)
	if err == nil {
		return nil
	}
	return slices.Compact(strings.Split(err.Error(), "\n")) // both of others say the same
}

// optional is nil where the resource need not be there and is not.
func optional(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// permissions asks the API server for each permission of each account, as RBAC need not be what
// grants it.
func (r Reader) permissions(ctx context.Context, s *Snapshot) (err error) {
	for _, a := range s.accounts() {
		groups := []string{"system:serviceaccounts", "system:serviceaccounts:" + a.Namespace, "system:authenticated"}
		a.Missing, err = Missing(ctx, a.Permissions, func(ctx context.Context, to *authorizationv1.ResourceAttributes) (bool, error) {
			review := &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: a.user(), Groups: groups, ResourceAttributes: to},
			}
			err := r.Reviews.Post().Resource("subjectaccessreviews").Body(review).Do(ctx).Into(review)
			return err == nil && review.Status.Allowed, err
		})
		if err != nil {
			return fmt.Errorf("review permissions of service account %s/%s: %w", a.Namespace, a.Account, err)
		}
	}
	return nil
}

// flowSchemas finds the accounts by name, in any FlowSchema.
func (r Reader) flowSchemas(ctx context.Context, s *Snapshot) error {
	named := map[Owned]bool{}
	of := cluster.Resource("flowcontrol.apiserver.k8s.io", "flowschemas")
	err := optional(cluster.Each(ctx, r.Lists, of, "", func(f *struct {
		cluster.Meta `json:"metadata"`
		Spec         struct {
			Rules []struct {
				Subjects []struct {
					ServiceAccount struct{ Namespace, Name string }
				}
			}
		}
	}) {
		for _, rule := range f.Spec.Rules {
			for _, subject := range rule.Subjects {
				named[accountOf(subject.ServiceAccount.Namespace, subject.ServiceAccount.Name)] = true
			}
		}
	}))
	for _, a := range s.accounts() {
		a.Unlisted = err == nil && !named[a.object()]
	}
	return err
}

// policies finds those that name the account in a condition and have a binding.
func (r Reader) policies(ctx context.Context, s *Snapshot) error {
	const group = "admissionregistration.k8s.io"
	bound := map[string]bool{}
	err := optional(cluster.Each(ctx, r.Lists, cluster.Resource(group, "validatingadmissionpolicybindings"), "", func(b *struct {
		cluster.Meta `json:"metadata"`
		Spec         struct{ PolicyName string }
	}) {
		bound[b.Spec.PolicyName] = true
	}))
	var conditions []string
	if err == nil {
		err = optional(cluster.Each(ctx, r.Lists, cluster.Resource(group, "validatingadmissionpolicies"), "", func(p *struct {
			cluster.Meta `json:"metadata"`
			Spec         struct {
				MatchConditions []struct{ Expression string }
			}
		}) {
			for _, c := range p.Spec.MatchConditions {
				if bound[p.Name] {
					conditions = append(conditions, c.Expression)
				}
			}
		}))
	}
	for _, a := range s.accounts() {
		a.Unheld = err == nil && !slices.ContainsFunc(conditions, func(c string) bool { return strings.Contains(c, "'"+a.user()+"'") })
	}
	return err
}
