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
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
)

// A pod is notified once, and again only when its time gets shorter, or, if it asks, when its new
// home is ready.
func TestNews(t *testing.T) {
	deadline := noon.Add(2 * time.Minute)
	at := deadline.Add(-40 * time.Second)
	notifier, _ := newNotifier(t, nil)
	a, b := podOf("a", plan.NoticeAnnotation, "80"), podOf("b", plan.NoticeAnnotation, "80", plan.NoticeReplacementAnnotation, "true")
	in := interrupted(time.Time{})
	for i, step := range []struct {
		change func()
		at     time.Time
		a, b   string
	}{
		{func() {}, time.Time{}, typeNotice, typeNotice},
		{func() {}, time.Time{}, "", ""},
		{func() { in.Deadline = deadline }, at, typeNotice, typeNotice},
		{func() {}, at.Add(-shift), "", ""},
		{func() {}, at.Add(-shift - time.Second), typeNotice, typeNotice},
		{func() { in.Deadline = deadline.Add(time.Minute) }, at.Add(time.Minute), "", ""},
		{func() { in.Ready = true }, at, "", typeReplacementReady},
		{func() {}, at, "", ""},
		{func() { in.Deadline = deadline.Add(-time.Second) }, at, typeNotice, typeNotice},
	} {
		step.change()
		if got := notifier.news(in, asks(a, step.at)); got != step.a {
			t.Errorf("step %d: a is notified of %q, want %q", i, got, step.a)
		}
		if got := notifier.news(in, asks(b, step.at)); got != step.b {
			t.Errorf("step %d: b is notified of %q, want %q", i, got, step.b)
		}
	}
}

// A pod that has no address yet cannot be called, and is notified when it has one; files need none.
func TestPodWithoutAddress(t *testing.T) {
	notifier, _ := newNotifier(t, func(o *Options) { o.Answered = func(string, types.UID, plan.When) {} })
	for name, tt := range map[string]struct {
		notice, address string
		noted           bool
	}{
		"a call, no address": {"80", "", false}, "a call": {"80", "10.0.0.1", true},
		"files, no address": {plan.NoticeFiles, "", true}, "files": {plan.NoticeFiles, "10.0.0.1", true},
	} {
		pod := podOf(strings.ReplaceAll(name, " ", "-"), plan.NoticeAnnotation, tt.notice)
		pod.Status.PodIP = tt.address
		d := asks(pod, time.Time{})
		d.Notice = tt.notice
		notifier.Notify(t.Context(), interrupted(time.Time{}), []plan.Decision{d})
		if again := notifier.news(interrupted(time.Time{}), d) == ""; again != tt.noted {
			t.Errorf("%s: taken for notified: %t", name, again)
		}
	}
	notifier.Wait()
}

// A pod is notified, answers, carries the annotations, and is notified when it was all for nothing; a pod
// that did not ask, or that is gone, is not. A new process that has notified nobody goes by the
// annotations.
func TestNotifyAndCancel(t *testing.T) {
	var mu sync.Mutex
	var heard []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event cloudEvent
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil || r.Header.Get("Content-Type") != contentType || r.Method != http.MethodPost {
			t.Errorf("%s of %s: %v", r.Method, r.Header.Get("Content-Type"), err)
		}
		mu.Lock()
		heard = append(heard, event.Subject+" "+event.Type+" "+r.URL.Path)
		mu.Unlock()
		fmt.Fprint(w, `{"when":"last"}`)
	}))
	t.Cleanup(server.Close)
	port := server.URL[strings.LastIndexByte(server.URL, ':')+1:]
	answers := make(chan string, 10)
	notifier, api := newNotifier(t, func(o *Options) {
		o.Answered = func(node string, pod types.UID, when plan.When) {
			answers <- node + " " + string(pod) + " " + string(when)
		}
	})
	deadline := noon.Add(2 * time.Minute)
	in := interrupted(deadline)
	a, files := podOf("a", plan.NoticeAnnotation, port+"/bye"), podOf("files", plan.NoticeAnnotation, plan.NoticeFiles)
	silent := podOf("silent")
	wrong := podOf("wrong", plan.NoticeAnnotation, "http")
	decisions := []plan.Decision{asks(a, deadline.Add(-40*time.Second)), asks(files, time.Time{}), asks(silent, noon), asks(wrong, noon)}
	for range 3 {
		notifier.Notify(t.Context(), in, decisions)
	}
	if got, want := <-answers, "node-a uid-a last"; got != want {
		t.Errorf("answer %q, want %q", got, want)
	}
	eventually(t, "annotations", func() bool { return len(api.taken()) == 3 })
	wantPatches := []string{
		`/api/v1/namespaces/shop/pods/a {"metadata":{"annotations":{"spot-handler/deadline":"2026-01-01T12:02:00Z","spot-handler/evict-by":"2026-01-01T12:01:20Z"},"uid":"uid-a"}}`,
		`/api/v1/namespaces/shop/pods/files {"metadata":{"annotations":{"spot-handler/deadline":"2026-01-01T12:02:00Z","spot-handler/evict-by":null},"uid":"uid-files"}}`,
		`/api/v1/namespaces/shop/pods/wrong {"metadata":{"annotations":{"spot-handler/deadline":"2026-01-01T12:02:00Z","spot-handler/evict-by":"2026-01-01T12:00:00Z"},"uid":"uid-wrong"}}`,
	}
	if diff := cmp.Diff(wantPatches, api.taken()); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	if reported := notifier.opts.Events.(*meaningless).reported; len(reported) != 1 || !strings.Contains(reported[0], `"http", want PORT or PORT/PATH`) {
		t.Errorf("reported %q", reported)
	}

	another, apiOfAnother := newNotifier(t, nil) // has notified nobody
	a.Annotations[plan.DeadlineAnnotation] = "2026-01-01T12:02:00Z"
	another.Canceled(t.Context(), in, []*corev1.Pod{a, files, silent})
	eventually(t, "removal of annotations", func() bool { return len(apiOfAnother.taken()) == 1 })
	if want := `/api/v1/namespaces/shop/pods/a {"metadata":{"annotations":{"spot-handler/deadline":null,"spot-handler/evict-by":null},"uid":"uid-a"}}`; apiOfAnother.taken()[0] != want {
		t.Errorf("patch %s, want %s", apiOfAnother.taken()[0], want)
	}
	eventually(t, "word that it is cancelled", func() bool { mu.Lock(); defer mu.Unlock(); return len(heard) == 2 })
	if want := []string{"shop/a spot-handler.notice /bye", "shop/a spot-handler.canceled /bye"}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
	if len(answers) > 0 {
		t.Errorf("an answer to a cancellation counts: %s", <-answers)
	}
}
