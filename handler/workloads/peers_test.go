package workloads

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
)

// memberOf is a pod of the gang g on a node.
func memberOf(name, node string, annotations ...string) *corev1.Pod {
	p := podOf(name, annotations...)
	p.Labels, p.Spec.NodeName = map[string]string{drain.GangLabel: "g"}, node
	return p
}

func leaves(pod *corev1.Pod, at time.Time) drain.Decision {
	return drain.Decision{Pod: pod, Action: drain.Later, Peers: drain.GangOf(pod), At: at}
}

func TestPeerEvent(t *testing.T) {
	deadline := noon.Add(2 * time.Minute)
	g := going{
		in: interrupted(deadline), what: typePeerNotice, gang: drain.Gang{Namespace: "shop", By: drain.GangLabel, Name: "g"},
		by: deadline.Add(-40 * time.Second), pods: []string{"rank-0", "rank-1"},
	}
	const want = `{"specversion":"1.0","id":"event-1/uid-rank-2/spot-handler.peer-notice/1767268920/1767268880","source":"/spot-handler/nodes/node-a",` +
		`"type":"spot-handler.peer-notice","subject":"shop/rank-2","time":"2026-01-01T12:00:00Z","datacontenttype":"application/json",` +
		`"data":{"kind":"spot-interruption","action":"terminate","node":"node-a","deadline":"2026-01-01T12:02:00Z","evictBy":"2026-01-01T12:01:20Z","replacement":"None",` +
		`"gang":"g","pods":["rank-0","rank-1"]}}`
	got, err := json.Marshal(newPeerEvent(noon, g, memberOf("rank-2", "node-b")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The other pods of a gang are notified if they ask and run on a node that does not end: once, when
// there is less time, and when it was all for nothing. What they answer moves nobody. Each piece of
// news costs one request, and a plan without a gang none.
func TestPeersAreTold(t *testing.T) {
	var mu sync.Mutex
	var heard []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event cloudEvent
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
			t.Error(err)
		}
		mu.Lock()
		heard = append(heard, fmt.Sprint(event.Subject, " ", event.Type, " ", event.Data.Node, " ", event.Data.Pods))
		mu.Unlock()
		fmt.Fprint(w, `{"when":"now"}`)
	}))
	t.Cleanup(server.Close)
	port := server.URL[strings.LastIndexByte(server.URL, ':')+1:]
	asks := []string{drain.NoticeAnnotation, port}
	ending, starting, done := memberOf("ending", "node-b", asks...), memberOf("starting", "node-b", asks...), memberOf("done", "node-b", asks...)
	ending.DeletionTimestamp, starting.Status.PodIP, done.Status.Phase = &metav1.Time{Time: noon}, "", corev1.PodSucceeded
	mine := memberOf("mine", "node-b", asks...)
	mine.Labels["spot-handler/gang"] = "h" // no API server would list it
	all := []*corev1.Pod{
		memberOf("rank-0", "node-a", asks...), memberOf("rank-1", "node-a"), memberOf("rank-2", "node-b", asks...), memberOf("rank-3", "node-c", asks...),
		memberOf("doomed", "node-d", asks...), memberOf("silent", "node-b"), memberOf("files", "node-b", drain.NoticeAnnotation, drain.NoticeFiles),
		memberOf("wrong", "node-b", drain.NoticeAnnotation, "http"), ending, starting, done, mine,
	}
	var listed []string
	failures := 1
	notifier, _ := newNotifier(t, func(o *Options) {
		o.Leaves = func(node string, gang drain.Gang) bool {
			return gang.Name == "g" && (node == "node-a" || node == "node-d")
		}
		o.Answered = func(node string, pod types.UID, when drain.When) { t.Errorf("%s of %s on %s counts", when, pod, node) }
		o.Pods = clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			listed = append(listed, r.Method+" "+r.URL.String())
			w.Header().Set("Content-Type", "application/json")
			if failures--; failures >= 0 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
			for _, pod := range all {
				list.Items = append(list.Items, *pod)
			}
			_ = json.NewEncoder(w).Encode(list)
		}))
	})
	told := func(requests int, want ...string) {
		t.Helper()
		eventually(t, strings.Join(want, ", "), func() bool { mu.Lock(); defer mu.Unlock(); return len(heard) >= len(want) })
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(heard)
		if diff := cmp.Diff(want, heard); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if len(listed) != requests {
			t.Errorf("requests %q, want %d", listed, requests)
		}
		heard, listed = nil, nil
	}
	deadline := noon.Add(2 * time.Minute)
	in, at := interrupted(deadline), deadline.Add(-40*time.Second)
	stays := leaves(memberOf("stays", "node-a"), at)
	stays.Stays = true
	closed := leaves(memberOf("closed", "node-a"), at)
	closed.Peers = drain.Gang{}
	plan := []drain.Decision{leaves(all[0], at.Add(time.Second)), leaves(all[1], at), stays, closed}
	for range 3 {
		notifier.Notify(t.Context(), in, plan)
	}
	told(2, "shop/rank-2 spot-handler.peer-notice node-a [rank-0 rank-1]", "shop/rank-3 spot-handler.peer-notice node-a [rank-0 rank-1]")
	in.Deadline = deadline.Add(-10 * time.Second)
	notifier.Notify(t.Context(), in, plan[:1])
	told(1, "shop/rank-2 spot-handler.peer-notice node-a [rank-0]", "shop/rank-3 spot-handler.peer-notice node-a [rank-0]")
	notifier.Canceled(t.Context(), in, nil)
	told(1, "shop/rank-2 spot-handler.peer-canceled node-a []", "shop/rank-3 spot-handler.peer-canceled node-a []")
	notifier.Canceled(t.Context(), in, nil)
	notifier.Notify(t.Context(), in, []drain.Decision{stays, closed})
	other := in
	other.Node = "node-d"
	notifier.Notify(t.Context(), other, []drain.Decision{leaves(all[4], at)})
	told(1, "shop/rank-2 spot-handler.peer-notice node-d [doomed]", "shop/rank-3 spot-handler.peer-notice node-d [doomed]")
}

// The pods of a PodGroup are found among all of their namespace, which is read in pages.
func TestPeersInPodGroup(t *testing.T) {
	grouped := func(name, node, group string) *corev1.Pod {
		p := memberOf(name, node, drain.NoticeAnnotation, "80")
		p.Labels, p.Spec.SchedulingGroup = nil, &corev1.PodSchedulingGroup{PodGroupName: &group}
		return p
	}
	var listed []string
	notifier, _ := newNotifier(t, func(o *Options) {
		o.Leaves = func(node string, _ drain.Gang) bool { return node == "node-a" }
		o.Pods = clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			listed = append(listed, r.URL.String())
			list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
			if r.URL.Query().Get("continue") == "" {
				list.Continue = "2"
				list.Items = []corev1.Pod{*grouped("rank-0", "node-a", "p"), *grouped("rank-1", "node-b", "p"), *memberOf("other", "node-b", drain.NoticeAnnotation, "80")}
			} else {
				list.Items = []corev1.Pod{*grouped("rank-2", "node-c", "p"), *grouped("elsewhere", "node-c", "q")}
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
		}))
	})
	var names []string
	peers, err := notifier.peers(t.Context(), drain.GangOf(grouped("rank-0", "node-a", "p")))
	if err != nil {
		t.Fatal(err)
	}
	for _, peer := range peers {
		names = append(names, peer.Name)
	}
	if diff := cmp.Diff([]string{"rank-1", "rank-2"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want := []string{"/api/v1/namespaces/shop/pods?continue=&limit=250", "/api/v1/namespaces/shop/pods?continue=2&limit=250"}
	if diff := cmp.Diff(want, listed); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// News of many nodes at once shares the requests that look a gang up.
func TestManyNodesOfOneGang(t *testing.T) {
	var mu sync.Mutex
	requests := 0
	hold := make(chan struct{})
	notifier, _ := newNotifier(t, func(o *Options) {
		o.Pods = clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-hold
			mu.Lock()
			defer mu.Unlock()
			requests++
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","items":[]}`)
		}))
	})
	for i := range 100 {
		in := interrupted(noon)
		in.Node = fmt.Sprint("node-", i)
		notifier.Notify(t.Context(), in, []drain.Decision{leaves(memberOf(fmt.Sprint("rank-", i), in.Node), noon)})
	}
	close(hold)
	notifier.Wait()
	if requests < 1 || requests > 2 {
		t.Errorf("%d requests for the news of 100 nodes, want one, and one for those that came meanwhile", requests)
	}
}
