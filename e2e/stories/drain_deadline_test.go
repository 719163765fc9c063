package stories

import (
	"context"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
)

// A pod with a grace period of 300 s, of which 40 s are left: it is evicted at once
// with what still fits before the margin, it is gone by then, and it is counted as
// truncated. Its neighbour, whose grace fits, is not.
func TestGraceThatDoesNotFitIsClamped(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 8)[0]
	slow := s.service("slow", 1, func(d *controlplane.DeploymentSpec) {
		stop := 300 * time.Second
		d.StopAfter, d.Grace = &stop, 300*time.Second
	})[0]
	fast := s.service("fast", 1, quick)[0]
	s.bare("spare", 1, 8)
	d, queue := s.drill()

	deadline := interrupt(queue, node.Name, 40*time.Second)
	line := s.wantResults(d, map[string]result{node.Name: {graceful: 1, truncated: 1}})[node.Name]
	const margin = 10 * time.Second
	for _, r := range s.evicted() {
		options := r.RequestObject.DeleteOptions
		switch types.UID(options.Preconditions.UID) {
		case fast.UID:
			if options.GracePeriodSeconds != nil {
				t.Errorf("the eviction of a pod whose grace fits says %d s", *options.GracePeriodSeconds)
			}
		case slow.UID:
			fits := deadline.Add(-margin).Sub(r.RequestReceivedTimestamp)
			if g := options.GracePeriodSeconds; g == nil || *g > int64(fits.Seconds())+5 || *g < int64(fits.Seconds())-1 {
				t.Errorf("the eviction %s before the deadline says %v s of grace, want %v", deadline.Sub(r.RequestReceivedTimestamp), value(g), fits)
			}
		}
	}
	s.wantEachOnce(uids([]*corev1.Pod{slow, fast}))
	if slack, _ := line["slack_seconds"].(float64); slack < 5 {
		t.Errorf("drained %v s before the deadline, want about the margin of %s", slack, margin)
	}
}

func value(p *int64) any {
	if p == nil {
		return "no"
	}
	return *p
}

// The deadline comes and pods are blocked, with --blocked-pods=delete: by a budget that
// allows nothing, and by two budgets, which the eviction API cannot serve at all. At
// their latest safe start they are deleted, with all their grace, and the Job whose pod
// is among them does not take it for a failure of its own. Pods, and a namespace, that
// ask to be left are left.
func TestBlockedPodsAreForcedWhereThatIsThePolicy(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 16)[0]
	pods := s.blocked()
	s.bare("spare", 1, 16)
	conditions := s.watchForced()
	d, queue := s.drill("--blocked-pods=delete")

	const left = 32 * time.Second
	deadline := interrupt(queue, node.Name, left)
	s.wantResults(d, map[string]result{node.Name: {graceful: 1, forced: 5, left: 2}})

	forced := map[types.UID]string{}
	for _, name := range []string{"db", "cache", "job", "asks-delete"} {
		for _, p := range pods[name] {
			forced[p.UID] = p.Name
		}
	}
	deleted := s.requests(func(r request) bool {
		return r.Verb == "delete" && r.ObjectRef.Resource == "pods" && r.ResponseStatus.Code == 200
	})
	latest := deadline.Add(-10*time.Second - 5*time.Second) // margin, grace
	for _, r := range deleted {
		if early := latest.Sub(r.RequestReceivedTimestamp); early > 0 {
			t.Errorf("pod %s was deleted %s before its latest safe start", r.ObjectRef.Name, early)
		}
		uid := types.UID(r.RequestObject.Preconditions.UID)
		if _, ok := forced[uid]; !ok {
			t.Errorf("pod %s deleted with the UID %q, which is none to be deleted", r.ObjectRef.Name, uid)
		}
		delete(forced, uid)
		late := r.RequestReceivedTimestamp.Sub(latest) // on a busy machine
		if g := r.RequestObject.GracePeriodSeconds; g != nil && (*g < 3 && late < 2*time.Second || *g > 5) {
			t.Errorf("pod %s deleted with a grace of %d s, want its 5", r.ObjectRef.Name, *g)
		}
		if c, ok := conditions(uid); !ok || c.Status != corev1.ConditionTrue {
			t.Errorf("pod %s was deleted without the condition DisruptionTarget", r.ObjectRef.Name)
		}
	}
	if len(forced) != 0 {
		t.Errorf("not deleted: %v", forced)
	}
	s.wantJobUnharmed("job")
}

// The same with --blocked-pods=leave, which is the default: only the pod that asks for
// it is deleted. The budget of all others is respected to the end.
func TestBlockedPodsAreLeftByDefault(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 16)[0]
	pods := s.blocked()
	s.bare("spare", 1, 16)
	d, queue := s.drill()

	interrupt(queue, node.Name, 32*time.Second)
	line := s.wantResults(d, map[string]result{node.Name: {graceful: 1, forced: 1, left: 6}})[node.Name]
	if line["reason"] == nil {
		t.Errorf("want the reason why pods were left: %v", line)
	}
	deleted := s.requests(func(r request) bool { return r.Verb == "delete" && r.ObjectRef.Resource == "pods" })
	if want := pods["asks-delete"][0]; len(deleted) != 1 || deleted[0].RequestObject.Preconditions.UID != string(want.UID) {
		t.Errorf("deleted %v, want %s only", deleted, want.Name)
	}
	if n := s.metric(d, "spot_handler_blocked_pods"); n != 0 {
		t.Errorf("%v pods counted as blocked after the end", n)
	}
}

// blocked runs, besides one pod that may go, pods that must not: "db" of a budget that
// allows none, "cache" of two budgets, "job" of a Job, "asks-delete" and "asks-leave",
// which say so themselves, and one that is in a namespace that says so.
func (s *story) blocked() map[string][]*corev1.Pod {
	s.Helper()
	pods := map[string][]*corev1.Pod{"free": s.service("free", 1, quick)}
	guard := func(replicas int, annotations map[string]string) func(*controlplane.DeploymentSpec) {
		return func(d *controlplane.DeploymentSpec) {
			quick(d)
			d.MaxSurge, d.BudgetMinAvailable, d.Annotations = never, budget(replicas), annotations
		}
	}
	pods["db"] = s.service("db", 2, guard(2, nil))
	pods["cache"] = s.service("cache", 1, guard(0, nil))
	_, err := s.cluster.Client.PolicyV1().PodDisruptionBudgets("default").Create(s.ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "second"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: budget(0), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cache"}}},
	}, metav1.CreateOptions{})
	s.must(err)
	pods["asks-delete"] = s.service("asks-delete", 1, guard(1, map[string]string{"spot-handler/blocked-pods": "delete"}))
	pods["asks-leave"] = s.service("asks-leave", 1, guard(1, map[string]string{"spot-handler/blocked-pods": "leave"}))

	s.must(s.cluster.CreateNamespace(s.ctx, "leave"))
	_, err = s.cluster.Client.CoreV1().Namespaces().Patch(s.ctx, "leave", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"spot-handler/blocked-pods":"leave"}}}`), metav1.PatchOptions{})
	s.must(err)
	inNamespace := controlplane.DeploymentSpec{Namespace: "leave", Name: "inherits", Replicas: 1}
	guard(1, nil)(&inNamespace)
	_, err = s.cluster.RunDeployment(s.ctx, inNamespace)
	s.must(err)
	pods["inherits"], err = s.cluster.WaitReady(s.ctx, "leave", "inherits", 1)
	s.must(err)
	pods["job"] = s.job("job", guard(1, nil))
	return pods
}

// job runs a Job that fails with the first pod that fails, unless that was disrupted.
func (s *story) job(name string, change func(*controlplane.DeploymentSpec)) []*corev1.Pod {
	s.Helper()
	spec := controlplane.DeploymentSpec{Name: name, Replicas: 1}
	change(&spec)
	_, err := s.cluster.RunJob(s.ctx, spec, func(j *batchv1.Job) {
		none := int32(0)
		j.Spec.BackoffLimit = &none
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action: batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			}},
		}}}
	})
	s.must(err)
	pods, err := s.cluster.WaitReady(s.ctx, "default", name, 1)
	s.must(err)
	return pods
}

// wantJobUnharmed checks that the Job goes on with another pod, and that it would not
// have if that pod were deleted as anybody deletes one.
func (s *story) wantJobUnharmed(name string) {
	s.Helper()
	jobs := s.cluster.Client.BatchV1().Jobs("default")
	pods, err := s.cluster.WaitReady(s.ctx, "default", name, 1)
	s.must(err)
	s.eventually("count of the Job's one active pod", func() bool {
		job, err := jobs.Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		if job.Status.Failed != 0 {
			s.Fatalf("the Job counts %d failed pods, want none", job.Status.Failed)
		}
		return job.Status.Active == 1
	})
	s.must(s.cluster.Client.CoreV1().Pods("default").Delete(s.ctx, pods[0].Name, metav1.DeleteOptions{}))
	s.eventually("failure of the Job by a deletion without the condition", func() bool {
		job, err := jobs.Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		return job.Status.Failed == 1
	})
}

// watchForced returns the condition DisruptionTarget that pods had when they were first
// seen to terminate.
func (s *story) watchForced() func(types.UID) (corev1.PodCondition, bool) {
	var mu sync.Mutex
	seen := map[types.UID]corev1.PodCondition{}
	s.background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
		defer cancel()
		_, _ = s.cluster.WaitPods(ctx, "", "", func(pods []*corev1.Pod) bool {
			mu.Lock()
			defer mu.Unlock()
			for _, p := range pods {
				if _, known := seen[p.UID]; known || p.DeletionTimestamp == nil {
					continue
				}
				seen[p.UID] = corev1.PodCondition{}
				for _, c := range p.Status.Conditions {
					if c.Type == corev1.DisruptionTarget {
						seen[p.UID] = c
					}
				}
			}
			return false
		})
	})
	return func(uid types.UID) (corev1.PodCondition, bool) {
		mu.Lock()
		defer mu.Unlock()
		c, ok := seen[uid]
		return c, ok && c.Type == corev1.DisruptionTarget
	}
}
