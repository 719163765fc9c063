package workloads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/narrow"
	"spot-handler/drain/plan"
)

// network is everything that a Notifier calls, in fake time: receivers, which hang if their path says
// so, and an API server.
type network struct {
	mu    sync.Mutex
	heard []string // subject, type and node, in order
	at    map[string]time.Time
	notes []string // annotations that were written, by pod
	hold  chan struct{}

	services        []string // networks
	lists, failures int      // of these
	reads           int      // of anything else
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	reply := func(v any) (*http.Response, error) {
		b, err := json.Marshal(v)
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(string(b))), Request: r}, err
	}
	hang := func(hold <-chan struct{}) error {
		select {
		case <-r.Context().Done():
			return r.Context().Err()
		case <-hold:
			return nil
		}
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/servicecidrs"):
		if accept := r.Header.Get("Accept"); accept != "application/json" {
			return nil, fmt.Errorf("asks for %s", accept)
		}
		if n.lists++; n.lists <= n.failures {
			return nil, errors.New("API server is unreachable")
		}
		return reply(map[string]any{"items": []any{map[string]any{"spec": map[string]any{"cidrs": n.services}}}})
	case r.Method == http.MethodGet:
		n.mu.Lock()
		defer n.mu.Unlock()
		n.reads++
		return nil, errors.New("there is no such resource")
	case r.Method == http.MethodPatch:
		if strings.HasPrefix(path.Base(r.URL.Path), "hang") {
			if err := hang(n.hold); err != nil {
				return nil, err
			}
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		body, err := io.ReadAll(r.Body)
		n.notes = append(n.notes, path.Base(r.URL.Path)+" "+string(body))
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"kind":"Pod","apiVersion":"v1"}`)), Request: r}, err
	}
	var event cloudEvent
	if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
		return nil, err
	}
	if strings.HasSuffix(r.URL.Path, "hang") {
		if err := hang(n.hold); err != nil {
			return nil, err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = append(n.heard, event.Subject+" "+event.Type+" "+event.Data.Node)
	n.at[n.heard[len(n.heard)-1]] = time.Now()
	return reply(map[string]string{})
}

// taken is what was heard since it was last asked for.
func (n *network) taken() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	heard := n.heard
	n.heard = nil
	return heard
}

func (n *network) notifier(t *testing.T, change func(*Options)) *Notifier {
	o := Options{
		On: true, Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Pods: clientThrough(t, narrow.Transport(n), corev1.SchemeGroupVersion, "/api"),
		Answered: func(string, types.UID, plan.When) {}, IsNode: func(netip.Addr) bool { return false }, Events: &meaningless{}, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop(),
	}
	if change != nil {
		change(&o)
	}
	notifier := New(o)
	notifier.client = &http.Client{Transport: n}
	return notifier
}

// in is a pod of a namespace that asks for a POST to that path.
func in(namespace, name, node, path string) *corev1.Pod {
	pod := podOf(name, plan.NoticeAnnotation, "80/"+path)
	pod.Spec.NodeName = node
	pod.Namespace, pod.UID, pod.Status.PodIP = namespace, types.UID(namespace+"/"+name), "10.0.0.1"
	pod.Kind, pod.APIVersion = "Pod", "v1"
	return pod
}

// Pods of twenty nodes that all hang, two thousand of them in one namespace, delay no other namespace.
// Two hundred of another delay not even the first notices of their own.
func TestHangingPodsDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{at: map[string]time.Time{}}
		notifier := n.notifier(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		began := map[string]time.Time{}
		for i := range 20 {
			now := interrupted(time.Now().Add(2 * time.Minute))
			now.Node = fmt.Sprint("node-", i)
			var decisions []plan.Decision
			for j := range 100 {
				decisions = append(decisions, asks(in("hostile", fmt.Sprint("rank-", i, "-", j), now.Node, "hang"), now.Deadline))
			}
			for j := range 10 {
				decisions = append(decisions, asks(in("slow", fmt.Sprint("rank-", i, "-", j), now.Node, "hang"), now.Deadline))
			}
			for _, namespace := range []string{"slow", "other", "third"} {
				pod := in(namespace, fmt.Sprint("pod-", i), now.Node, "")
				decisions = append(decisions, asks(pod, now.Deadline))
				began[fmt.Sprint(namespace, "/", pod.Name, " ", typeNotice, " ", now.Node)] = time.Now()
			}
			notifier.Notify(ctx, now, decisions)
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		n.mu.Lock()
		if len(n.at) != len(began) {
			t.Errorf("%d notices have arrived, want %d", len(n.at), len(began))
		}
		for who, since := range began {
			if late := n.at[who].Sub(since); late > time.Second || late < 0 {
				t.Errorf("%s was late by %s", who, late)
			}
		}
		n.mu.Unlock()
		cancel() // as if the lease were lost
		before := time.Now()
		notifier.Wait()
		if took := time.Since(before); took > 0 {
			t.Errorf("what was under way went on for %s", took)
		}
	})
}

// A webhook that hangs for the pods of one namespace keeps no other namespace's pods from their
// annotations.
func TestHangingAnnotationsDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{at: map[string]time.Time{}}
		notifier := n.notifier(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		deadline := time.Now().Add(2 * time.Minute)
		var decisions []plan.Decision
		for i := range 100 {
			pod := in("hostile", fmt.Sprint("hang-", i), "node-a", "")
			pod.Annotations[plan.NoticeAnnotation] = plan.NoticeFiles
			decisions = append(decisions, asks(pod, deadline))
		}
		pod := in("other", "prompt", "node-a", "")
		pod.Annotations[plan.NoticeAnnotation] = plan.NoticeFiles
		notifier.Notify(ctx, interrupted(deadline), append(decisions, asks(pod, deadline)))
		synctest.Wait()
		if len(n.notes) != 1 || !strings.HasPrefix(n.notes[0], "prompt ") {
			t.Errorf("annotated %q, want the other namespace's pod at once", n.notes)
		}
		cancel()
		notifier.Wait()
	})
}

// A pod that still waits for its notice gets it before it is notified that the replacement is
// ready.
func TestReplacementReadyComesAfterTheNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{at: map[string]time.Time{}, hold: make(chan struct{})}
		notifier := n.notifier(t, nil)
		deadline := time.Now().Add(2 * time.Minute)
		var decisions []plan.Decision
		for i := range posts {
			decisions = append(decisions, asks(in("shop", fmt.Sprint("hangs-", i), "node-a", "hang"), deadline))
		}
		last := asks(in("shop", "last", "node-a", ""), deadline)
		last.Pod.Annotations[plan.NoticeReplacementAnnotation] = "true"
		decisions = append(decisions, last)
		now := interrupted(deadline)
		notifier.Notify(t.Context(), now, decisions)
		now.Ready = true
		notifier.Notify(t.Context(), now, decisions)
		close(n.hold)
		notifier.Wait()
		heard := slices.DeleteFunc(n.taken(), func(h string) bool { return !strings.HasPrefix(h, "shop/last ") })
		want := []string{"shop/last spot-handler.notice node-a", "shop/last spot-handler.replacement-ready node-a"}
		if diff := cmp.Diff(want, heard); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A notice of EC2's during a rehearsal, and any other event, is news to the pods, though there is more
// time than before.
func TestAnotherEventIsNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{at: map[string]time.Time{}}
		notifier := n.notifier(t, nil)
		pod := in("shop", "rank", "node-a", "")
		now := interrupted(time.Now().Add(time.Minute))
		for i, event := range []string{"rehearsal-1", "event-1", "event-2"} {
			now.Record.Event = event
			now.Deadline = now.Deadline.Add(time.Minute)
			for range 2 {
				notifier.Notify(t.Context(), now, []plan.Decision{asks(pod, now.Deadline.Add(-time.Minute))})
				notifier.Wait()
			}
			if diff := cmp.Diff([]string{"shop/rank spot-handler.notice node-a"}, n.taken()); diff != "" {
				t.Errorf("event %d (-want +got):\n%s", i, diff)
			}
		}
	})
}

// Pods of a gang are notified of the end of their own node, and the others of it are not: nobody
// looks them up.
func TestGangOnTwoNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{at: map[string]time.Time{}}
		notifier := n.notifier(t, nil)
		rank := in("shop", "rank-0", "node-a", "")
		rank.Labels = map[string]string{plan.GangLabel: "g"}
		now := interrupted(time.Now().Add(2 * time.Minute))
		notifier.Notify(t.Context(), now, []plan.Decision{asks(rank, now.Deadline)})
		notifier.Wait()
		notifier.Canceled(t.Context(), now, []*corev1.Pod{rank})
		notifier.Wait()
		if diff := cmp.Diff([]string{"shop/rank-0 spot-handler.notice node-a", "shop/rank-0 spot-handler.canceled node-a"}, n.taken()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if n.reads > 0 {
			t.Errorf("%d requests for the other pods of the gang", n.reads)
		}
	})
}

// A pod that has finished is not notified: its address might be another's.
func TestNoCancellationToFinishedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{at: map[string]time.Time{}}
		notifier := n.notifier(t, nil)
		now := interrupted(time.Now().Add(2 * time.Minute))
		finished, runs := in("shop", "finished", "node-a", ""), in("shop", "runs", "node-a", "")
		notifier.Notify(t.Context(), now, []plan.Decision{asks(finished, now.Deadline), asks(runs, now.Deadline)})
		notifier.Wait()
		n.taken()
		finished.Status.Phase = corev1.PodSucceeded
		notifier.Canceled(t.Context(), now, []*corev1.Pod{finished, runs})
		notifier.Wait()
		if diff := cmp.Diff([]string{"shop/runs spot-handler.canceled node-a"}, n.taken()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// What waits or is under way when the lease is lost never arrives: the next leader might have
// removed it meanwhile.
func TestNothingArrivesAfterTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{at: map[string]time.Time{}, hold: make(chan struct{})}
		notifier := n.notifier(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		now := interrupted(time.Now().Add(2 * time.Minute))
		var decisions []plan.Decision
		for i := range 2 * notes {
			decisions = append(decisions, asks(in("shop", fmt.Sprint("hang-", i), "node-a", "hang"), now.Deadline))
		}
		notifier.Notify(ctx, now, decisions)
		synctest.Wait()
		cancel()
		notifier.Wait()
		close(n.hold)
		time.Sleep(time.Hour)
		if len(n.heard)+len(n.notes) > 0 {
			t.Errorf("heard %q, annotated %q after the lease was lost", n.heard, n.notes)
		}
	})
}
