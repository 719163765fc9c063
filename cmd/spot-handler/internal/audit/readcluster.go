package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/handler/provisioner/karpenter"
)

// Reader reads what is about the cluster, and not about the workloads of one namespace.
type Reader struct {
	Lists   cluster.Lister
	Dynamic dynamic.Interface
	// Fallbacks are [karpenter.Options.FallbackNodePools] of whoever drains, and WithoutKarpenter
	// says that Karpenter is not asked for replacements.
	Fallbacks        map[string]string
	WithoutKarpenter bool
	// Daemons are the pods of spot-handler, as they and their settings have it.
	Daemons func(context.Context) ([]Daemon, error)
}

// Read adds to the snapshot. What could not be read is missing, and unread says why.
func (r Reader) Read(ctx context.Context, s *Snapshot) (unread []string) {
	var errs []error
	var err error
	s.Daemons, err = r.Daemons(ctx)
	errs = append(errs, err)
	if !r.WithoutKarpenter {
		s.Outlooks, err = karpenter.Outlooks(ctx, r.Dynamic, r.Fallbacks)
		errs = append(errs, err)
	}
	err = errors.Join(append(errs, r.others(ctx, s), r.rights(ctx, s), r.flowSchemas(ctx, s), r.policies(ctx, s), r.balanced(ctx, s))...)
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

// optional is nil where the resource need not be there and is not.
func optional(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// program is what is read of a Deployment or a DaemonSet.
type program struct {
	meta `json:"metadata"`
	Spec struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Command, Args []string
					Env           []struct {
						Name, Value string
						ValueFrom   *struct{}
					}
				}
			}
		}
	}
}

type meta struct {
	cluster.Meta
	Labels map[string]string `json:"labels,omitempty"`
}

// others finds programs by the labels that their charts and manifests give them.
func (r Reader) others(ctx context.Context, s *Snapshot) error {
	const handler = "aws-node-termination-handler"
	var errs []error
	for _, kind := range []string{"deployment", "daemonset"} {
		err := cluster.Each(ctx, r.Lists, cluster.Apps(kind+"s"), "app.kubernetes.io/name in (karpenter, "+handler+")", func(p *program) {
			o := Other{Namespace: p.Namespace, Object: kind + "/" + p.Name, Karpenter: p.Labels["app.kubernetes.io/name"] == "karpenter"}
			if o.Karpenter {
				var hasQueue bool
				if o.Variable, hasQueue = p.interruptionQueue(); !hasQueue {
					return
				}
			}
			s.Others = append(s.Others, o)
		})
		errs = append(errs, optional(err))
	}
	return errors.Join(errs...)
}

// interruptionQueue reports whether Karpenter is given a queue, and by which variable.
// https://karpenter.sh/docs/reference/settings/
func (p *program) interruptionQueue() (variable string, ok bool) {
	for _, c := range p.Spec.Template.Spec.Containers {
		for _, v := range c.Env {
			if v.Name == "INTERRUPTION_QUEUE" && (v.Value != "" || v.ValueFrom != nil) {
				return v.Name, true
			}
		}
		args := slices.Concat(c.Command, c.Args)
		for i, arg := range args {
			value, inline := strings.CutPrefix(arg, "--interruption-queue=")
			if inline && value != "" || arg == "--interruption-queue" && i+1 < len(args) && args[i+1] != "" {
				return "", true
			}
		}
	}
	return "", false
}

var accessReviews = schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"}

// rights asks the API server for each right of each account, as RBAC need not be what grants it.
func (r Reader) rights(ctx context.Context, s *Snapshot) error {
	var mu sync.Mutex
	missing := map[Owned][]Right{}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, d := range s.accounts() {
		for _, right := range d.Rights {
			g.Go(func() error {
				resource, subresource, _ := strings.Cut(right.Resource, "/")
				review := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
					"spec": map[string]any{
						"user":   "system:serviceaccount:" + d.Namespace + ":" + d.Account,
						"groups": []any{"system:serviceaccounts", "system:serviceaccounts:" + d.Namespace, "system:authenticated"},
						"resourceAttributes": map[string]any{
							"verb": right.Verb, "group": right.Group, "resource": resource, "subresource": subresource, "namespace": right.Namespace,
						},
					},
				}}
				answer, err := r.Dynamic.Resource(accessReviews).Create(ctx, review, metav1.CreateOptions{})
				if err != nil {
					return fmt.Errorf("review rights of service account %s/%s: %w", d.Namespace, d.Account, err)
				}
				if allowed, _, _ := unstructured.NestedBool(answer.Object, "status", "allowed"); !allowed {
					mu.Lock()
					defer mu.Unlock()
					missing[Owned{d.Namespace, d.Account}] = append(missing[Owned{d.Namespace, d.Account}], right)
				}
				return nil
			})
		}
	}
	err := g.Wait()
	for i, d := range s.Daemons {
		list := missing[Owned{d.Namespace, d.Account}]
		slices.SortFunc(list, func(a, b Right) int { return strings.Compare(a.String()+a.Namespace, b.String()+b.Namespace) })
		s.Daemons[i].Missing = list
	}
	return err
}

var (
	flowSchemas = schema.GroupVersionResource{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "flowschemas"}
	policies    = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}
	bindings    = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}
)

// flowSchemas looks for the accounts by name, whoever has made the FlowSchema.
func (r Reader) flowSchemas(ctx context.Context, s *Snapshot) error {
	named := map[Owned]bool{}
	err := optional(cluster.Each(ctx, r.Lists, flowSchemas, "", func(f *struct {
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
				named[Owned{subject.ServiceAccount.Namespace, subject.ServiceAccount.Name}] = true
			}
		}
	}))
	for i, d := range s.Daemons {
		s.Daemons[i].Unlisted = err == nil && !named[Owned{d.Namespace, d.Account}]
	}
	return err
}

// policies looks for those that name the account in a condition and have a binding.
func (r Reader) policies(ctx context.Context, s *Snapshot) error {
	bound := map[string]bool{}
	err := optional(cluster.Each(ctx, r.Lists, bindings, "", func(b *struct {
		cluster.Meta `json:"metadata"`
		Spec         struct{ PolicyName string }
	}) {
		bound[b.Spec.PolicyName] = true
	}))
	var conditions []string
	if err == nil {
		err = optional(cluster.Each(ctx, r.Lists, policies, "", func(p *struct {
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
	for i, d := range s.Daemons {
		user := "'system:serviceaccount:" + d.Namespace + ":" + d.Account + "'"
		s.Daemons[i].Unheld = err == nil && !slices.ContainsFunc(conditions, func(c string) bool { return strings.Contains(c, user) })
	}
	return err
}
