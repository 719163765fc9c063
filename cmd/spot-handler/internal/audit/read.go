package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// Reader reads a cluster once, in pages, with the rights of whoever asks.
type Reader struct {
	Nodes   nodes.Client
	Core    rest.Interface // core/v1
	Policy  rest.Interface // policy/v1
	Dynamic dynamic.Interface

	// Namespace, if it is set, is the only one whose workloads are read.
	Namespace string
	// Margin is kept free before the deadline by whoever drains.
	Margin time.Duration
}

// pageSize bounds how many whole objects are in memory at a time.
const pageSize = 500

// notice is what EC2 leaves after a spot interruption notice.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
const notice = 2 * time.Minute

// arrival is how long the notice itself and the first eviction are taken to need.
const arrival = 10 * time.Second

// Read reads what the checks need. What could not be read is missing, and unread says why.
func (r Reader) Read(ctx context.Context) (s Snapshot, unread []string) {
	s.Grace = notice - arrival - r.Margin
	safe, err := r.safeNodes(ctx)
	if err != nil { // then every node might be one that EC2 takes
		unread = append(unread, err.Error())
	}
	for _, read := range []func(context.Context, *Snapshot) error{
		func(ctx context.Context, s *Snapshot) error { return r.pods(ctx, s, safe) }, r.budgets, r.deployments,
	} {
		if err := read(ctx, &s); err != nil {
			unread = append(unread, err.Error())
		}
	}
	return s, unread
}

// onDemand are the labels that say of a Node that EC2 does not take it back at two minutes'
// notice: Karpenter's, and that of EKS.
var onDemand = map[string]string{"karpenter.sh/capacity-type": "on-demand", "eks.amazonaws.com/capacityType": "ON_DEMAND"}

// safeNodes are the nodes that get no spot notice.
func (r Reader) safeNodes(ctx context.Context) (map[string]bool, error) {
	list, err := nodes.List(ctx, r.Nodes, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	safe := map[string]bool{}
	for _, node := range list.Items {
		for label, value := range onDemand {
			if node.Labels[label] == value {
				safe[node.Name] = true
			}
		}
	}
	return safe, nil
}

// pods reads the pods that an interruption would have to move.
func (r Reader) pods(ctx context.Context, s *Snapshot, safe map[string]bool) error {
	for next := ""; ; {
		page := &corev1.PodList{}
		err := r.Core.Get().NamespaceIfScoped(r.Namespace, r.Namespace != "").Resource("pods").
			Param("limit", fmt.Sprint(pageSize)).Param("continue", next).Do(ctx).Into(page)
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		var here []*corev1.Pod
		for i := range page.Items {
			if pod := &page.Items[i]; pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && !safe[pod.Spec.NodeName] {
				here = append(here, pod)
			}
		}
		taint := corev1.Taint{Key: interruption.TaintKey, Value: string(interruption.SpotInterruption), Effect: corev1.TaintEffectNoSchedule}
		for _, d := range drain.Plan(time.Now(), drain.Situation{Interruption: drain.Interruption{Taint: taint}, Pods: here}) {
			if d.Moves() {
				s.Pods = append(s.Pods, lean(d.Pod))
			}
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

func lean(pod *corev1.Pod) Pod {
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		grace = *own
	}
	p := Pod{
		Namespace: pod.Namespace, Name: pod.Name, Owner: "pod/" + pod.Name, Labels: pod.Labels,
		Grace: time.Duration(min(grace, int64(24*time.Hour/time.Second))) * time.Second,
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		p.Owner = strings.ToLower(owner.Kind) + "/" + owner.Name
	}
	if d := drain.DeploymentOf(pod); d.Name != "" {
		p.Owner = deploymentPrefix + d.Name
	}
	return p
}

func (r Reader) budgets(ctx context.Context, s *Snapshot) error {
	for next := ""; ; {
		page := &policyv1.PodDisruptionBudgetList{}
		err := r.Policy.Get().NamespaceIfScoped(r.Namespace, r.Namespace != "").Resource("poddisruptionbudgets").
			Param("limit", fmt.Sprint(pageSize)).Param("continue", next).Do(ctx).Into(page)
		if err != nil {
			return fmt.Errorf("list disruption budgets: %w", err)
		}
		for i := range page.Items {
			s.Budgets = append(s.Budgets, &page.Items[i])
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

func (r Reader) deployments(ctx context.Context, s *Snapshot) error {
	found := map[string]Deployment{}
	all := r.Dynamic.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace(r.Namespace)
	for o := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := all.List(ctx, o)
		if err != nil {
			return fmt.Errorf("list deployments: %w", err)
		}
		for i := range page.Items {
			found[page.Items[i].GetNamespace()+"/"+page.Items[i].GetName()] = deployment(&page.Items[i])
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			s.Deployments = found
			return nil
		}
	}
}

// deployment reads fields that the API server has filled in.
func deployment(u *unstructured.Unstructured) Deployment {
	replicas, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
	strategy, _, _ := unstructured.NestedString(u.Object, "spec", "strategy", "type")
	surge, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "strategy", "rollingUpdate", "maxSurge")
	return Deployment{Replicas: int(replicas), Strategy: strategy, MaxSurge: fmt.Sprint(surge)}
}
