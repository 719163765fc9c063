package drain

import (
	"testing"
	"time"

	"spot-handler/drain/plan"
)

// A surged pod goes where its ReplicaSet goes: back into it, or with it.
func TestSurgedPodFollowsItsReplicaSet(t *testing.T) {
	const set = "/apis/apps/v1/namespaces/shop/replicasets/web-abc12"
	const deployment = "/apis/apps/v1/namespaces/shop/deployments/web"
	edit := func(f *fakeAPI, path string, change func(meta object)) {
		changed := f.copyOf(path)
		change(changed["metadata"].(object))
		f.put(path, changed)
	}
	deleting := func(finalizer string) func(object) {
		return func(meta object) {
			meta["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
			meta["finalizers"] = []string{finalizer}
		}
	}
	owned := func(meta object) {
		meta["ownerReferences"] = []object{{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "web", "controller": true}}
	}
	for name, tt := range map[string]struct {
		happens func(*fakeAPI)
		ends    bool
	}{
		"all there": {func(*fakeAPI) {}, false},
		"Deployment orphaned it": {func(f *fakeAPI) {
			edit(f, set, func(meta object) { delete(meta, "ownerReferences") })
			f.remove(deployment)
		}, false},
		"Deployment is about to orphan it": {func(f *fakeAPI) { edit(f, deployment, deleting("orphan")) }, false},
		"Deployment waits for others":      {func(f *fakeAPI) { edit(f, deployment, deleting("others.example/wait")) }, false},
		"Deployment ends it":               {func(f *fakeAPI) { edit(f, deployment, deleting("foregroundDeletion")) }, true},
		"Deployment gone":                  {func(f *fakeAPI) { f.remove(deployment) }, true},
		"Deployment made again":            {func(f *fakeAPI) { edit(f, deployment, func(meta object) { meta["uid"] = "another" }) }, true},
		"ReplicaSet gone":                  {func(f *fakeAPI) { f.remove(set); f.remove(deployment) }, true},
		"ReplicaSet ends":                  {func(f *fakeAPI) { edit(f, set, deleting("foregroundDeletion")); f.remove(deployment) }, true},
		"ReplicaSet orphans its pods":      {func(f *fakeAPI) { edit(f, set, deleting("orphan")); f.remove(deployment) }, false},
		"somebody has removed the note": {func(f *fakeAPI) {
			f.change("a", func(pod object) { delete(pod["metadata"].(object)["annotations"].(object), plan.SurgedAnnotation) })
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
				surgeScene(1)(f)
				edit(f, set, owned)
			}, func(s *scene) {
				if s.labels("a")[plan.SurgedLabel] == nil {
					s.Fatal("not surged")
				}
				tt.happens(s.api)
				if left := s.cancel("node-a", 0); left == nil {
					s.Fatal("it is not cancelled")
				}
				ended, back := s.api.count("DELETE", "/pods/a") == 1, s.labels("a")[plan.HashLabel] == "abc12" && s.labels("a")[plan.SurgedLabel] == nil
				if ended != tt.ends || back == tt.ends {
					s.Errorf("ended %t, back %t; want ended %t", ended, back, tt.ends)
				}
				if n := s.api.count("POST", "/eviction"); n != 0 {
					s.Errorf("%d evictions, want none: no budget has a say in this", n)
				}
			})
		})
	}
}

// Its Deployment goes while it is surged: the pod is ended at once, although its budget refuses
// every eviction.
func TestSurgedPodEndsWithItsDeployment(t *testing.T) {
	for name, in := range map[string]time.Duration{"certain": 120 * time.Second, "at risk only": 0} {
		t.Run(name, func(t *testing.T) {
			stage(t, surgePolicy, in, plan.ReadyCapacity, func(f *fakeAPI) {
				surgeScene(1)(f)
				f.answer = refuseEvictions
			}, func(s *scene) {
				s.api.remove("/apis/apps/v1/namespaces/shop/replicasets/web-abc12")
				s.api.remove("/apis/apps/v1/namespaces/shop/deployments/web")
				s.pass(time.Second)
				s.api.gone("a")
				s.pass(time.Second)
				if !s.now().Moved {
					s.Error("the pod is still there")
				}
				if r := s.finish("node-a"); r.Total != 1 || r.Graceful != 1 {
					s.Errorf("result %+v, want one, graceful", r)
				}
			})
		})
	}
}

// Somebody restores pod-template-hash: the pod is its ReplicaSet's again, and is held from now
// on, and not surged again.
func TestSurgedPodThatSomebodyPutsBack(t *testing.T) {
	stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, surgeScene(1), func(s *scene) {
		s.api.change("a", func(pod object) { pod["metadata"].(object)["labels"].(object)[plan.HashLabel] = "abc12" })
		s.pass(time.Second)
		if got := s.labels("a"); got[plan.SurgedLabel] != nil || got[plan.HashLabel] != "abc12" {
			s.Errorf("labels %v, want the pod as it was", got)
		}
		s.pass(10 * time.Second)
		if n := s.api.count("PATCH", "/pods/a"); n != 2 {
			s.Errorf("%d patches, want one to surge it and one to put it back", n)
		}
		s.change(func(in *plan.NodeState) { in.Capacity = plan.ReadyCapacity })
		s.pass(time.Second)
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Errorf("%d evictions when the replacement is ready, want 1", n)
		}
	})
}

// A quota forbids the replacement pod: the pod goes back and is held, and is not surged again when
// the ReplicaSet, which has all its pods, says no more of it.
func TestSurgedPodWhoseSuccessorCannotBeMade(t *testing.T) {
	const deployment = "/apis/apps/v1/namespaces/shop/deployments/web"
	stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, surgeScene(1), func(s *scene) {
		fails := func(conditions ...object) {
			changed := s.api.copyOf(deployment)
			changed["status"].(object)["conditions"] = conditions
			s.api.put(deployment, changed)
			s.pass(time.Second)
		}
		full := object{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
		fails(full)
		fails() // it was a conflict
		s.pass(2 * time.Second)
		if s.labels("a")[plan.SurgedLabel] == nil {
			s.Error("given back, although the ReplicaSet goes on")
		}
		fails(full)
		s.pass(2 * time.Second)
		if got := s.labels("a"); got[plan.SurgedLabel] != nil || got[plan.HashLabel] != "abc12" {
			s.Errorf("labels %v, want the pod as it was", got)
		}
		fails()
		s.until(79 * time.Second)
		if n := s.api.count("PATCH", "/pods/a"); n != 2 {
			s.Errorf("%d patches, want one to surge it and one to put it back", n)
		}
		if n := s.api.count("POST", "/a/eviction"); n != 0 {
			s.Errorf("%d evictions before the replacement is ready, want none", n)
		}
		s.until(80 * time.Second)
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Errorf("%d evictions at the eviction deadline, want 1", n)
		}
	})
}
