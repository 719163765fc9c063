package stories

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/drain/plan"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// The chart grants what is needed and no more: each kind of process sees an interruption
// through, with everything that rarely happens on the way, and in the end has been refused
// nothing and has used every right that it has.
func TestEveryRightOfTheChartIsUsed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, account string
		args          []string
		drains        bool
	}{
		{"queue", queueAccount, []string{"queue", "--workload-notices"}, true},
		{"drain", drainAccount, []string{"drain", "--workload-notices"}, true},
		{"imds", markAccount, []string{"imds", "--drain=false"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStory(long(t), controlplane.Options{Karpenter: true, Audit: true})
			// No pool names its fallback: all are looked at to choose one.
			s.must(s.cluster.CreatePools(s.ctx,
				controlplane.PoolSpec{Name: "batch", Weight: 100, CPUs: 16, Boot: time.Second},
				controlplane.PoolSpec{Name: "batch-fallback", Weight: 10, CPUs: 16, Boot: 3 * time.Second, Capacity: []string{controlplane.OnDemand}}))
			node := s.node("batch")
			// Two services: one whose pods are surged, with a volume, and one whose pods cannot be
			// and that waits for its budget.
			s.must(s.cluster.CreateClaim(s.ctx, "", "shared", corev1.ReadWriteMany))
			s.service("web", 4, func(d *controlplane.DeploymentSpec) {
				d.Change = func(d *appsv1.Deployment) {
					controlplane.Mount(&d.Spec.Template.Spec, "shared")
					metav1.SetMetaDataAnnotation(&d.Spec.Template.ObjectMeta, plan.NoticeAnnotation, "8080")
				}
			})
			s.service("db", 3, func(d *controlplane.DeploymentSpec) {
				none, one := intstr.FromInt32(0), intstr.FromInt32(1)
				d.MaxSurge, d.MaxUnavailable, d.BudgetMinAvailable = &none, &one, budget(2)
			})
			start := func(flag string) (*daemon.Daemon, source) {
				from := s.source(tt.args[0], node)
				return s.run(daemon.Options{
					Args: slices.Concat(tt.args, from.args, []string{flag}), IMDS: from.imdsURL, SQS: from.sqsURL,
					// As with an older API server, which cannot stream what there is at the start of a
					// watch: there it has to be listed.
					Env: []string{"KUBE_FEATURE_WatchListClient=false"},
				}), from
			}
			if tt.account == queueAccount {
				d, from := start("--dry-run")
				from.interrupt()
				s.waitLine(d, "dry run: pod")
				d.Stop()
			}
			// A recommendation only cordons, so that it can be undone and come again.
			last, from := start("--rebalance=cordon")
			s.cordonAgain(tt.account, node.Name, from)
			if tt.drains {
				s.cancel(node.Name, from)
				s.grantEviction(s.staying(node.Name, "db"))
				from.interrupt()
				s.waitLine(last, "node released")
				s.waitGone(node.Name)
			}
			granted := s.granted(tt.account)
			var unused []string
			s.within("use of every right", 30*time.Second, func() bool {
				used := s.used(tt.account)
				unused = unused[:0]
				for r := range granted {
					switch {
					case used[r], r.namespace == holdNamespace: // of placeholders, which have stories of their own
					case r == right{verb: "get", group: "karpenter.sh", resource: "nodepools"}: // of earlier versions
					case r == right{verb: "get", resource: "nodes"} && tt.account == drainAccount: // of one that is too new for the watch
					default:
						unused = append(unused, r.String())
					}
				}
				slices.Sort(unused)
				return len(unused) == 0
			}, func() string { return "unused: " + strings.Join(unused, ", ") })
		})
	}
}

// source delivers interruptions to the daemon, by either way.
type source struct {
	args                 []string
	imdsURL, sqsURL      string
	recommend, interrupt func()
}

func (s *story) source(mode string, node *corev1.Node) source {
	s.Helper()
	switch mode {
	case "drain": // the node is marked by another
		from := s.source("imds", node)
		s.run(daemon.Options{Args: slices.Concat([]string{"imds", "--drain=false"}, from.args), IMDS: from.imdsURL})
		return source{recommend: from.recommend, interrupt: from.interrupt}
	case "imds":
		server := s.imds(node)
		// Each with a second of its own, which has not begun: the same is the same notice, and
		// what EC2 had said when one was cancelled is cancelled with it.
		at, end := time.Now().Add(-time.Hour), time.Time{}
		return source{
			args:    []string{"--node-name=" + node.Name},
			imdsURL: server.URL, recommend: func() { at = at.Add(time.Second); server.Rebalance(at) },
			interrupt: func() {
				if next := time.Now().Add(2*time.Minute + time.Second); next.Sub(end) > time.Second {
					end = next
				} else {
					end = end.Add(time.Second)
				}
				server.Clear()
				server.Interrupt("terminate", end)
			},
		}
	}
	server, queue := s.sqs()
	event := 0
	send := func(kind string) {
		event++
		queue.Send(daemon.EventBridge(kind, fmt.Sprint("event-", event), controlplane.InstanceID(node.Name), time.Now().Add(time.Second)))
	}
	return source{
		args: []string{"--queue-url=" + queue.URL()}, sqsURL: server.URL,
		recommend: func() { send(daemon.Rebalance) }, interrupt: func() { send(daemon.SpotInterruption) },
	}
}

// cordonAgain recommends until two things have happened: somebody else changed the node
// in the same moment, so that the daemon has read it again, and the same Event came a
// second time, so that it was counted up. What a recommendation does is undone in between.
func (s *story) cordonAgain(account, node string, from source) {
	s.Helper()
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	go func() {
		// Not without a pause: the daemon reads, and must find time to write.
		for tick := time.NewTicker(8 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/busy":%q}}}`, time.Now())
			_, _ = s.cluster.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		}
	}()
	var recommended time.Time
	s.eventually("use of the rare rights", func() bool {
		if _, has := record(s.lastSeen(node)); !has {
			// Again, if it was taken for the one before, whose record was just undone.
			if time.Since(recommended) > time.Second {
				recommended = time.Now()
				from.recommend()
			}
			return false
		}
		undo := fmt.Sprintf(`{"metadata":{"annotations":{%q:null}},"spec":{"unschedulable":null,"taints":null}}`, interruption.Annotation)
		_, err := s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, node, types.MergePatchType, []byte(undo), metav1.PatchOptions{})
		s.must(err)
		recommended = time.Time{}
		used := s.used(account)
		return (used[right{verb: "get", resource: "nodes"}] || account == drainAccount) &&
			(used[right{verb: "patch", resource: "events"}] || account == markAccount)
	})
}

// cancel interrupts the node, and cancels that when the first pod has been surged, so
// that it is put back.
func (s *story) cancel(node string, from source) {
	s.Helper()
	from.interrupt()
	s.eventually("surge of a pod", func() bool {
		return slices.ContainsFunc(s.podsOn(node, "web"), func(p corev1.Pod) bool { return p.Labels[plan.SurgedLabel] != "" })
	})
	cancel := fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}}}`, interruption.CancelAnnotation)
	_, err := s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, node, types.MergePatchType, []byte(cancel), metav1.PatchOptions{})
	s.must(err)
	_, err = s.cluster.WaitNode(s.ctx, node, func(n *corev1.Node) bool {
		// A recommendation that could not be written as the node changed all the time may come after.
		rec, has := record(n)
		return n != nil && (!has || rec.Kind == interruption.RebalanceRecommendation) && n.Annotations[interruption.CancelAnnotation] == ""
	})
	s.must(err)
}

// staying is a pod of the service that is on the node and not about to go.
func (s *story) staying(node, service string) *corev1.Pod {
	s.Helper()
	pods := slices.DeleteFunc(s.podsOn(node, service), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if len(pods) == 0 {
		s.Fatalf("no pod of %s is left on node %s", service, node)
	}
	return &pods[0]
}

// grantEviction leaves behind what the first half of an eviction does: the budget is
// charged for the pod, and the pod lives.
func (s *story) grantEviction(pod *corev1.Pod) {
	s.Helper()
	grant := fmt.Sprintf(`{"status":{"disruptionsAllowed":0,"disruptedPods":{%q:%q}}}`, pod.Name, time.Now().UTC().Format(time.RFC3339))
	_, err := s.cluster.Client.PolicyV1().PodDisruptionBudgets(pod.Namespace).Patch(s.ctx, pod.Labels["app"], types.MergePatchType, []byte(grant), metav1.PatchOptions{}, "status")
	s.must(err)
}

// right is one that RBAC can grant.
type right struct{ verb, group, resource, namespace string }

func (r right) String() string {
	text := r.verb + " " + r.resource
	if r.group != "" {
		text += "." + r.group
	}
	if r.namespace != "" {
		text += " in namespace " + r.namespace
	}
	return text
}

func (r request) right() right {
	return right{verb: r.Verb, group: r.ObjectRef.APIGroup, resource: strings.TrimSuffix(r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")}
}

// granted are the rights of the account as the API server has them: those for one
// namespace name it.
func (s *story) granted(account string) map[right]bool {
	s.Helper()
	rights := map[right]bool{}
	add := func(namespace string, rules []rbacv1.PolicyRule) {
		for _, rule := range rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						rights[right{verb, group, resource, namespace}] = true
					}
				}
			}
		}
	}
	ours := func(subjects []rbacv1.Subject) bool {
		return slices.ContainsFunc(subjects, func(subject rbacv1.Subject) bool {
			return subject.Kind == rbacv1.ServiceAccountKind && subject.Namespace == namespace && subject.Name == account
		})
	}
	rbac := s.cluster.Client.RbacV1()
	everywhere, err := rbac.ClusterRoleBindings().List(s.ctx, metav1.ListOptions{})
	s.must(err)
	for _, b := range everywhere.Items {
		if ours(b.Subjects) {
			role, err := rbac.ClusterRoles().Get(s.ctx, b.RoleRef.Name, metav1.GetOptions{})
			s.must(err)
			add("", role.Rules)
		}
	}
	bindings, err := rbac.RoleBindings("").List(s.ctx, metav1.ListOptions{})
	s.must(err)
	for _, b := range bindings.Items {
		if ours(b.Subjects) {
			role, err := rbac.Roles(b.Namespace).Get(s.ctx, b.RoleRef.Name, metav1.GetOptions{})
			s.must(err)
			add(b.Namespace, role.Rules)
		}
	}
	if len(rights) == 0 {
		s.Fatalf("%s has no rights", account)
	}
	return rights
}

// used are the rights that the account has needed so far, both for the namespace and for
// all: which of them was granted is a matter of the roles.
func (s *story) used(account string) map[right]bool {
	s.Helper()
	rights := map[right]bool{}
	for _, r := range s.requests(func(r request) bool {
		return r.User.Username == "system:serviceaccount:"+namespace+":"+account && !r.forbidden()
	}) {
		one := r.right()
		rights[one] = true
		one.namespace = r.ObjectRef.Namespace
		rights[one] = true
	}
	return rights
}
