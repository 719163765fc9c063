package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"spot-handler/handler/provisioner/karpenter"
)

// cluster reads what is about the cluster, and not about the workloads of one namespace.
func (r Reader) cluster(ctx context.Context, s *Snapshot) error {
	var errs []error
	var err error
	s.Daemons, err = r.Daemons(ctx)
	errs = append(errs, err)
	if !r.WithoutKarpenter {
		s.Outlooks, err = karpenter.Outlooks(ctx, r.Dynamic, r.Fallbacks)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, r.others(ctx, s), r.rights(ctx, s), r.flowSchemas(ctx, s), r.policies(ctx, s), r.balanced(ctx, s))...)
}

// optional reads a resource that need not be there.
func (r Reader) optional(ctx context.Context, of schema.GroupVersionResource, selector string, use func(*unstructured.Unstructured)) error {
	err := r.lister(ctx)(of, selector, use)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// others finds programs by the labels that their charts and manifests give them.
func (r Reader) others(ctx context.Context, s *Snapshot) error {
	const handler = "aws-node-termination-handler"
	for _, kind := range []string{"deployment", "daemonset"} {
		err := r.optional(ctx, apps(kind+"s"), "app.kubernetes.io/name in (karpenter, "+handler+")", func(u *unstructured.Unstructured) {
			o := Other{Namespace: u.GetNamespace(), Object: kind + "/" + u.GetName(), Karpenter: u.GetLabels()["app.kubernetes.io/name"] == "karpenter"}
			if o.Karpenter {
				var hasQueue bool
				if o.Variable, hasQueue = interruptionQueue(u); !hasQueue {
					return
				}
			}
			s.Others = append(s.Others, o)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// interruptionQueue reports whether Karpenter is given a queue, and by which variable.
// https://karpenter.sh/docs/reference/settings/
func interruptionQueue(deployment *unstructured.Unstructured) (variable string, ok bool) {
	template, _, _ := unstructured.NestedMap(deployment.Object, "spec", "template")
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, pod); err != nil {
		return "", false
	}
	for _, c := range pod.Spec.Containers {
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
	err := r.optional(ctx, flowSchemas, "", func(u *unstructured.Unstructured) {
		rules, _, _ := unstructured.NestedSlice(u.Object, "spec", "rules")
		for _, rule := range rules {
			rule, _ := rule.(map[string]any)
			subjects, _, _ := unstructured.NestedSlice(rule, "subjects")
			for _, subject := range subjects {
				subject, _ := subject.(map[string]any)
				namespace, _, _ := unstructured.NestedString(subject, "serviceAccount", "namespace")
				name, _, _ := unstructured.NestedString(subject, "serviceAccount", "name")
				named[Owned{namespace, name}] = true
			}
		}
	})
	for i, d := range s.Daemons {
		s.Daemons[i].Unlisted = err == nil && !named[Owned{d.Namespace, d.Account}]
	}
	return err
}

// policies looks for those that name the account in a condition and have a binding.
func (r Reader) policies(ctx context.Context, s *Snapshot) error {
	bound := map[string]bool{}
	err := r.optional(ctx, bindings, "", func(u *unstructured.Unstructured) {
		name, _, _ := unstructured.NestedString(u.Object, "spec", "policyName")
		bound[name] = true
	})
	var conditions []string
	if err == nil {
		err = r.optional(ctx, policies, "", func(u *unstructured.Unstructured) {
			list, _, _ := unstructured.NestedSlice(u.Object, "spec", "matchConditions")
			for _, c := range list {
				c, _ := c.(map[string]any)
				if text, _, _ := unstructured.NestedString(c, "expression"); bound[u.GetName()] {
					conditions = append(conditions, text)
				}
			}
		})
	}
	for i, d := range s.Daemons {
		user := "'system:serviceaccount:" + d.Namespace + ":" + d.Account + "'"
		s.Daemons[i].Unheld = err == nil && !slices.ContainsFunc(conditions, func(c string) bool { return strings.Contains(c, user) })
	}
	return err
}
