package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	drainplan "spot-handler/drain/plan"
	"spot-handler/e2e/chaos/evidence"
	"spot-handler/e2e/chaos/plan"
	"spot-handler/e2e/daemon"
)

// One short round, always the same: losses of all sorts, while replicas and both servers
// fail. `make chaos` plays others.
func TestRound(t *testing.T) { play(t, "queue") }

// The same round, where each node is marked by a process of its own.
func TestRoundOfMarkedNodes(t *testing.T) { play(t, "imds") }

func play(t *testing.T, mode string) {
	t.Helper()
	sum, err := run(t.Context(), options{seed: 22, mode: mode, first: 1, only: true, size: plan.Short, dir: t.TempDir(), out: t.Output()})
	t.Log(sum)
	if err != nil {
		t.Fatal(err)
	}
}

// A pod that does not change in the round is notified. That is no notice in vain: the pod was there when
// the round began, although no watch says so again.
func TestObserverKeepsPodsThatDoNotChange(t *testing.T) {
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				UID: types.UID(name), Namespace: roundNamespace, Name: name,
				Annotations: map[string]string{drainplan.NoticeAnnotation: "80"},
			},
			Spec: corev1.PodSpec{NodeName: node},
		}
	}
	o := &observer{pods: map[types.UID]evidence.Pod{}}
	o.pod(pod("of-an-earlier-round", "lost"), false)
	o.pod(pod("of-an-earlier-round", "lost"), true)
	o.pod(pod("unchanged", "lost"), false)
	changed := pod("changed", "stays")
	o.pod(changed, false)
	o.forget()
	began := time.Now()
	o.pod(changed, false)

	r := evidence.Round{
		Losses:  []evidence.Loss{{Node: "lost", Canceled: began}},
		Notices: []evidence.Notice{{At: began, Type: "spot-handler.canceled", Namespace: roundNamespace, Name: "unchanged", Node: "lost"}},
	}
	o.fill(&r)
	if broken := evidence.Check(r); len(broken) > 0 {
		t.Errorf("broken: %v", broken)
	}
	if len(r.Pods) != 1 || r.Pods[0].Name != "unchanged" {
		t.Errorf("pods of the lost node: %+v, want only the one that is there", r.Pods)
	}
	if len(r.Elsewhere) != 1 || r.Elsewhere[0].Bound.After(began) {
		t.Errorf("pods elsewhere: %+v, want the one that has changed, bound before the round", r.Elsewhere)
	}
}

// How a process ends when it is stopped in order is held against it, unless it was killed, before or
// while it was stopping, or had only begun.
func TestStopInOrderOfReplica(t *testing.T) {
	const away = time.Hour // the process does not come back in the test
	said := func(r *replica, line string) func() bool {
		return func() bool { d := r.current(); return d != nil && len(d.Lines(line)) > 0 }
	}
	stop := func(_ *testing.T, r *replica) { r.kill(away, true) }
	for name, tt := range map[string]struct {
		program string // after it was started
		end     func(*testing.T, *replica)
		broken  string
	}{
		"stops in order":         {"trap 'exit 0' TERM; echo runs >&2", stop, ""},
		"stops with an error":    {"trap 'exit 3' TERM; echo runs >&2", stop, "ended with code 3"},
		"does not stop in order": {"echo runs >&2", stop, "ended with code -1"},
		"has only begun":         {"", stop, ""},
		"killed before": {"trap 'exit 0' TERM; echo runs >&2", func(_ *testing.T, r *replica) {
			r.kill(away, false)
			r.kill(away, true)
		}, ""},
		"killed while it stops": {"trap 'echo stops >&2' TERM; echo runs >&2", func(t *testing.T, r *replica) {
			stopped := make(chan struct{})
			go func() { defer close(stopped); r.kill(away, true) }()
			until(t, said(r, "stops"))
			r.kill(away, false)
			<-stopped
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "spot-handler")
			script := "#!/bin/sh\n" + tt.program + "\nwhile :; do sleep 0.05; done\n"
			if err := os.WriteFile(file, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			r, ended := &replica{options: daemon.Options{Binary: file}}, make(chan error)
			go func() { ended <- r.run(ctx) }()
			if tt.program == "" {
				until(t, func() bool { return r.current() != nil })
			} else {
				until(t, said(r, "runs"))
			}
			tt.end(t, r)
			cancel()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			got := strings.Join(r.takeUnexpected(), "; ")
			if (got == "") != (tt.broken == "") || !strings.Contains(got, tt.broken) {
				t.Errorf("held against it: %q, want %q", got, tt.broken)
			}
		})
	}
}

// until polls until it is done.
func until(t *testing.T, done func() bool) {
	t.Helper()
	err := poll(t.Context(), time.Minute, func(context.Context) (bool, error) { return done(), nil })
	if err != nil {
		t.Fatal(err)
	}
}
