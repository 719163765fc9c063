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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
	"spot-handler/drain/narrow"
)

// network is everything that a Notifier calls, in fake time: receivers, which hang if their path says
// so, and an API server with the pods of gangs.
type network struct {
	mu    sync.Mutex
	pods  []*corev1.Pod
	heard []string // subject, type and node, in order
	at    map[string]time.Time
	notes []string // annotations that were written, by pod
	hold  chan struct{}

	services        []string // networks
	lists, failures int      // of these

	endless string         // the namespace whose lists of pods have no end
	pages   map[string]int // by namespace
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
		if n.lists++; n.lists <= n.failures {
			return nil, errors.New("API server is away")
		}
		return reply(map[string]any{"items": []any{map[string]any{"spec": map[string]any{"cidrs": n.services}}}})
	case r.Method == http.MethodGet:
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		namespace := path.Base(path.Dir(r.URL.Path))
		for _, pod := range n.pods {
			if pod.Namespace == namespace {
				list.Items = append(list.Items, *pod)
			}
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.pages == nil {
			n.pages = map[string]int{}
		}
		if n.pages[namespace]++; namespace == n.endless {
			list.Continue = "more"
		}
		return reply(list)
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
		Answered: func(string, types.UID, drain.When) {}, Leaves: func(string, drain.Gang) bool { return false },
		IsNode: func(netip.Addr) bool { return false }, Events: &meaningless{}, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop(),
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
	pod := memberOf(name, node, drain.NoticeAnnotation, "80/"+path)
	pod.Namespace, pod.UID, pod.Status.PodIP = namespace, types.UID(namespace+"/"+name), "10.0.0.1"
	pod.Kind, pod.APIVersion = "Pod", "v1"
	return pod
}

// asksAndLeaves is the decision about a pod of a gang that asks for a POST.
func asksAndLeaves(pod *corev1.Pod, in Interruption) drain.Decision {
	d := leaves(pod, in.Deadline.Add(-time.Minute))
	d.Notice = pod.Annotations[drain.NoticeAnnotation]
	return d
}

// A thousand peers of twenty nodes that all hang, and pods on these nodes with them, delay nobody
// else: neither pods and peers of another namespace, nor the first notices of their own.
func TestHangingPeersDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{at: map[string]time.Time{}}
		for i := range 1000 {
			n.pods = append(n.pods, in("hostile", fmt.Sprint("peer-", i), "healthy", "hang"))
		}
		for i := range 10 {
			n.pods = append(n.pods, in("other", fmt.Sprint("peer-", i), "healthy", ""))
		}
		notifier := n.notifier(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		began := map[string]time.Time{}
		for i := range 20 {
			in1 := interrupted(time.Now().Add(2 * time.Minute))
			in1.Node = fmt.Sprint("node-", i)
			var plan []drain.Decision
			for j := range 10 {
				plan = append(plan, asksAndLeaves(in("hostile", fmt.Sprint("rank-", i, "-", j), in1.Node, "hang"), in1))
			}
			for _, namespace := range []string{"hostile", "other", "third"} {
				pod := in(namespace, fmt.Sprint("pod-", i), in1.Node, "")
				plan = append(plan, asksAndLeaves(pod, in1))
				began[fmt.Sprint(namespace, "/", pod.Name, " ", typeNotice, " ", in1.Node)] = time.Now()
			}
			notifier.Notify(ctx, in1, plan)
			for j := range 10 {
				began[fmt.Sprint("other/peer-", j, " ", typePeerNotice, " ", in1.Node)] = time.Now()
			}
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
		var plan []drain.Decision
		for i := range 100 {
			pod := in("hostile", fmt.Sprint("hang-", i), "node-a", "")
			pod.Annotations[drain.NoticeAnnotation] = drain.NoticeFiles
			plan = append(plan, asks(pod, deadline))
		}
		pod := in("other", "prompt", "node-a", "")
		pod.Annotations[drain.NoticeAnnotation] = drain.NoticeFiles
		notifier.Notify(ctx, interrupted(deadline), append(plan, asks(pod, deadline)))
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
		var plan []drain.Decision
		for i := range posts {
			plan = append(plan, asks(in("shop", fmt.Sprint("hangs-", i), "node-a", "hang"), deadline))
		}
		last := asks(in("shop", "last", "node-a", ""), deadline)
		last.Pod.Annotations[drain.NoticeReplacementAnnotation] = "true"
		plan = append(plan, last)
		now := interrupted(deadline)
		notifier.Notify(t.Context(), now, plan)
		now.Ready = true
		notifier.Notify(t.Context(), now, plan)
		close(n.hold)
		notifier.Wait()
		heard := slices.DeleteFunc(n.taken(), func(h string) bool { return !strings.HasPrefix(h, "shop/last ") })
		want := []string{"shop/last spot-handler.notice node-a", "shop/last spot-handler.replacement-ready node-a"}
		if diff := cmp.Diff(want, heard); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A notice of EC2's during a rehearsal, and any other event, is news to the pods and to their
// peers, though there is more time than before.
func TestAnotherEventIsNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{at: map[string]time.Time{}, pods: []*corev1.Pod{in("shop", "peer", "healthy", "")}}
		notifier := n.notifier(t, nil)
		pod := in("shop", "rank", "node-a", "")
		now := interrupted(time.Now().Add(time.Minute))
		for i, event := range []string{"rehearsal-1", "event-1", "event-2"} {
			now.Record.Event = event
			now.Deadline = now.Deadline.Add(time.Minute)
			for range 2 {
				notifier.Notify(t.Context(), now, []drain.Decision{asksAndLeaves(pod, now)})
				notifier.Wait()
			}
			want := []string{"shop/peer spot-handler.peer-notice node-a", "shop/rank spot-handler.notice node-a"}
			heard := n.taken()
			slices.Sort(heard)
			if diff := cmp.Diff(want, heard); diff != "" {
				t.Errorf("event %d (-want +got):\n%s", i, diff)
			}
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
		notifier.Notify(t.Context(), now, []drain.Decision{asks(finished, now.Deadline), asks(runs, now.Deadline)})
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
		var plan []drain.Decision
		for i := range 2 * notes {
			plan = append(plan, asks(in("shop", fmt.Sprint("hang-", i), "node-a", "hang"), now.Deadline))
		}
		notifier.Notify(ctx, now, plan)
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

// A pod whose own node goes on after all is notified of the other node that ends with its peers:
// until then it had to leave itself.
func TestPeerWhoseOwnNodeGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rank := map[string]*corev1.Pod{"node-a": in("shop", "rank-a", "node-a", ""), "node-b": in("shop", "rank-b", "node-b", ""), "node-c": in("shop", "rank-c", "node-c", "")}
		n := &network{at: map[string]time.Time{}, pods: []*corev1.Pod{rank["node-a"], rank["node-b"], rank["node-c"]}}
		ends := map[string]bool{"node-a": true, "node-b": true}
		notifier := n.notifier(t, func(o *Options) { o.Leaves = func(node string, _ drain.Gang) bool { return ends[node] } })
		now := interrupted(time.Now().Add(2 * time.Minute))
		for _, node := range []string{"node-a", "node-b"} {
			now.Node = node
			notifier.Notify(t.Context(), now, []drain.Decision{leaves(rank[node], now.Deadline)})
			notifier.Wait()
		}
		want := []string{"shop/rank-c spot-handler.peer-notice node-a", "shop/rank-c spot-handler.peer-notice node-b"}
		if diff := cmp.Diff(want, n.taken()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		delete(ends, "node-b")
		notifier.Canceled(t.Context(), now, []*corev1.Pod{rank["node-b"]})
		notifier.Wait()
		want = []string{"shop/rank-b spot-handler.peer-notice node-a", "shop/rank-c spot-handler.peer-canceled node-b"}
		heard := n.taken()
		slices.Sort(heard)
		if diff := cmp.Diff(want, heard); diff != "" {
			t.Errorf("after the cancellation (-want +got):\n%s", diff)
		}
	})
}

// A process that has just begun to lead notifies peers of a cancellation, as the process before it might
// have notified them of the interruption; not those of a namespace that forbids it.
func TestCancellationAfterAChangeOfLeader(t *testing.T) {
	for name, tt := range map[string]struct {
		silent   bool
		failures int
		change   func(*Interruption)
		want     []string
	}{
		"notified":          {want: []string{"shop/peer spot-handler.peer-canceled node-a"}},
		"read again":        {failures: 2, want: []string{"shop/peer spot-handler.peer-canceled node-a"}},
		"silent":            {silent: true},
		"not known":         {failures: listAttempts},
		"no deadline":       {change: func(i *Interruption) { i.Record.Deadline = time.Time{} }},
		"had not begun yet": {change: func(i *Interruption) { i.Record.Phase = "Waiting" }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rank := in("shop", "rank", "node-a", "")
				n := &network{at: map[string]time.Time{}, pods: []*corev1.Pod{rank, in("shop", "peer", "node-b", "")}}
				notifier := n.notifier(t, func(o *Options) {
					o.Silent = func(_ context.Context, namespace string) (bool, error) {
						if tt.failures--; tt.failures >= 0 {
							return false, errors.New("API server is away")
						}
						return tt.silent && namespace == "shop", nil
					}
				})
				now := interrupted(time.Time{})
				now.Record.Deadline = time.Now().Add(time.Minute)
				if tt.change != nil {
					tt.change(&now)
				}
				notifier.Canceled(t.Context(), now, []*corev1.Pod{rank})
				notifier.Wait()
				if diff := cmp.Diff(tt.want, n.taken()); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A gang with more pods, or with larger ones, than are read goes without its peers, and people are
// notified why; other gangs do not.
func TestGangTooLargeToRead(t *testing.T) {
	large := in("hostile", "large", "node-b", "")
	large.Annotations["spot-handler/filler"] = strings.Repeat("x", 7<<10)
	for name, tt := range map[string]struct {
		pods    []*corev1.Pod
		endless bool
		want    string
		lists   int
	}{
		"too large": {slices.Repeat([]*corev1.Pod{large}, 400), false, narrow.ErrTooLong.Error(), 1},
		"too many":  {slices.Repeat([]*corev1.Pod{in("hostile", "peer", "node-b", "")}, 250), true, errTooManyPods.Error(), mostPages},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{at: map[string]time.Time{}, pods: append(tt.pods, in("other", "peer", "node-b", ""))}
				if tt.endless {
					n.endless = "hostile"
				}
				told := &meaningless{}
				notifier := n.notifier(t, func(o *Options) { o.Events = told })
				now := interrupted(time.Now().Add(2 * time.Minute))
				notifier.Notify(t.Context(), now, []drain.Decision{
					leaves(in("hostile", "rank", "node-a", ""), now.Deadline), leaves(in("other", "rank", "node-a", ""), now.Deadline),
				})
				notifier.Wait()
				if diff := cmp.Diff([]string{"other/peer spot-handler.peer-notice node-a"}, n.taken()); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if len(told.told) != 1 || !strings.HasPrefix(told.told[0], "node-a hostile/g ") || !strings.Contains(told.told[0], tt.want) {
					t.Errorf("people are told %q, want %q", told.told, tt.want)
				}
				if n.pages["hostile"] != tt.lists {
					t.Errorf("%d pages were read, want %d", n.pages["hostile"], tt.lists)
				}
			})
		})
	}
}
