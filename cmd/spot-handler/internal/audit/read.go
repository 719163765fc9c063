package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/cmd/spot-handler/internal/console"
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
	// Fallbacks are [karpenter.Options.FallbackNodePools] of whoever drains, and WithoutKarpenter
	// says that Karpenter is not asked for replacements.
	Fallbacks        map[string]string
	WithoutKarpenter bool
	// Daemons are the pods of spot-handler, as they and their settings have it; nil if only the
	// workloads are to be read, and nothing about the cluster.
	Daemons func(context.Context) ([]Daemon, error)
	// MaxShare is how many percent of a workload may be on one offering.
	MaxShare int
}

// notice is what EC2 leaves after a spot interruption notice.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
const notice = 2 * time.Minute

// arrival is how long the notice itself and the first eviction are taken to need.
const arrival = 10 * time.Second

// Read reads what the checks need. What could not be read is missing, and unread says why.
func (r Reader) Read(ctx context.Context) (s Snapshot, unread []string) {
	s.Grace = notice - arrival - r.Margin
	around := drain.Situation{Policy: drain.Policy{Strategy: drain.Surge, Margin: r.Margin}}
	around.Taint = corev1.Taint{Key: interruption.TaintKey, Value: string(interruption.SpotInterruption), Effect: corev1.TaintEffectNoSchedule}
	s.MaxShare = r.MaxShare
	reads := []func() error{
		func() error { return r.nodes(ctx, &s) },
		func() error { return r.budgets(ctx, &s) },
		func() error { return r.deployments(ctx, &s, &around) },
		func() error { return r.statefulSets(ctx, &s) },
		func() error { return around.ReadSurroundings(r.lister(ctx)) },
	}
	if r.Namespace == "" {
		reads = append(reads, func() error { return r.volumes(ctx, &s) })
	}
	reads = append(reads, func() error { return r.pods(ctx, &s, around) })
	if r.Namespace == "" && r.Daemons != nil {
		reads = append(reads, func() error { return r.cluster(ctx, &s) })
	}
	for _, read := range reads {
		if err := read(); err != nil {
			unread = append(unread, strings.Split(err.Error(), "\n")...)
		}
	}
	return s, unread
}

// nodes reads all nodes. Without them, every node might be one that EC2 takes.
func (r Reader) nodes(ctx context.Context, s *Snapshot) error {
	s.OnDemand = nodes.OnDemandLabels[0]
	list, err := nodes.List(ctx, r.Nodes, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	s.Nodes = list.Items
	for i := range s.Nodes {
		if label, ok := nodes.OnDemand(&s.Nodes[i]); ok {
			s.OnDemand = label
		}
	}
	return nil
}

// pods reads the pods that an interruption would have to move, and counts all.
func (r Reader) pods(ctx context.Context, s *Snapshot, around drain.Situation) error {
	s.Replicas = map[Owned]int{}
	safe := map[string]bool{}
	for i := range s.Nodes {
		_, safe[s.Nodes[i].Name] = nodes.OnDemand(&s.Nodes[i])
	}
	now := time.Now()
	around.Deadline = now.Add(notice - arrival) // without one, some would stay
	return console.Pages(ctx, r.Core, r.Namespace, "pods", "", func(page *corev1.PodList) {
		around.Pods = nil
		for i := range page.Items {
			pod := &page.Items[i]
			if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
				continue
			}
			s.Replicas[ownerOf(pod)]++
			if pod.Spec.NodeName == "" || safe[pod.Spec.NodeName] {
				continue
			}
			around.Pods = append(around.Pods, pod)
			if name := drain.DeploymentOf(pod); s.Deployments != nil && around.Workloads[name].Selector == nil {
				around.Workloads[name] = drain.Workload{} // there is none of that name
			}
		}
		for _, d := range drain.Plan(now, around) {
			if d.Moves() {
				p := lean(d, now)
				p.Zone = s.zoneOf(d.Pod)
				s.Pods = append(s.Pods, p)
			}
		}
	})
}

func (r Reader) budgets(ctx context.Context, s *Snapshot) error {
	return console.Pages(ctx, r.Policy, r.Namespace, "poddisruptionbudgets", "", func(page *policyv1.PodDisruptionBudgetList) {
		for i := range page.Items {
			s.Budgets = append(s.Budgets, &page.Items[i])
		}
	})
}

// lister reads what there is of a resource.
func (r Reader) lister(ctx context.Context) func(schema.GroupVersionResource, string, func(*unstructured.Unstructured)) error {
	return func(of schema.GroupVersionResource, selector string, use func(*unstructured.Unstructured)) error {
		return console.Objects(ctx, r.Dynamic.Resource(of).Namespace(r.Namespace), of.Resource, selector, use)
	}
}

func apps(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}
}

func (r Reader) deployments(ctx context.Context, s *Snapshot, around *drain.Situation) error {
	found, workloads := map[string]Deployment{}, map[types.NamespacedName]drain.Workload{}
	var wrong error
	err := r.lister(ctx)(apps("deployments"), "", func(u *unstructured.Unstructured) {
		w, err := specified(u)
		if err != nil {
			wrong = err
			return
		}
		minReady, _, _ := unstructured.NestedInt64(u.Object, "spec", "minReadySeconds")
		workloads[types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}] = w
		found[u.GetNamespace()+"/"+u.GetName()] = Deployment{Replicas: s.wants(u), MinReady: int(minReady), Refuses: w.Refuses}
	})
	if err == nil {
		s.Deployments, around.Workloads = found, workloads
	}
	return errors.Join(err, wrong)
}

func specified(u *unstructured.Unstructured) (drain.Workload, error) {
	d, err := drain.ReadDeployment(u)
	if err != nil {
		return drain.Workload{}, err
	}
	return d.Specified()
}

func (r Reader) statefulSets(ctx context.Context, s *Snapshot) error {
	return r.lister(ctx)(apps("statefulsets"), "", func(u *unstructured.Unstructured) { s.wants(u) })
}

// wants is how many pods a workload asks for. If that is none, it notes their labels.
func (s *Snapshot) wants(u *unstructured.Unstructured) int {
	replicas, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
	if replicas == 0 {
		theirs, _, _ := unstructured.NestedStringMap(u.Object, "spec", "template", "metadata", "labels")
		if s.Idle == nil {
			s.Idle = map[string][]labels.Set{}
		}
		s.Idle[u.GetNamespace()] = append(s.Idle[u.GetNamespace()], theirs)
	}
	return int(replicas)
}
