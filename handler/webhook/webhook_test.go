package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
)

const secretURL = "https://hooks.example.com/services/T000/B000/topsecret"

// receiver answers POSTs as answer says, and keeps what it was sent.
type receiver struct {
	answer func(n int) (*http.Response, error) // to the n-th request, from 1

	mu      sync.Mutex
	bodies  []string
	times   []time.Time
	headers []http.Header
	hosts   []string
}

var _ http.RoundTripper = (*receiver)(nil)

func (r *receiver) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.bodies, r.times = append(r.bodies, string(body)), append(r.times, time.Now())
	r.headers, r.hosts = append(r.headers, req.Header.Clone()), append(r.hosts, req.Host)
	n := len(r.bodies)
	r.mu.Unlock()
	if r.answer == nil {
		return answer(200, "ok"), nil
	}
	return r.answer(n)
}

func (r *receiver) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.bodies...)
}

func answer(status int, text string, header ...string) *http.Response {
	resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text))}
	for i := 0; i+1 < len(header); i += 2 {
		resp.Header.Set(header[i], header[i+1])
	}
	return resp
}

// newSender returns a Sender to the receiver, and its log.
func newSender(t *testing.T, r *receiver, template *Template) (*Sender, *bytes.Buffer) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte(secretURL), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	w := New(Options{
		Endpoint: Endpoint{URLFile: file}, Template: template, UserAgent: "spot-handler/test",
		Registerer: prometheus.NewRegistry(), Logger: zerolog.New(zerolog.SyncWriter(&log)).Level(zerolog.InfoLevel),
	})
	w.client.Transport = r
	return w, &log
}

// startSender runs a Sender until the test ends.
func startSender(t *testing.T, r *receiver, template *Template) (*Sender, *bytes.Buffer) {
	t.Helper()
	w, log := newSender(t, r, template)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _ = w.Run(ctx); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })
	return w, log
}

func (w *Sender) count(result string) int {
	var m dto.Metric
	if err := w.results.WithLabelValues(result).Write(&m); err != nil {
		return -1
	}
	return int(m.GetCounter().GetValue())
}

func interrupted(name string) (*corev1.Node, interruption.Record) {
	r := interruption.NewRecord(interruption.Notice{
		Kind: interruption.SpotInterruption, Source: interruption.Queue, EventID: "event-1", InstanceID: "i-0123456789abcdef0",
		Noticed: time.Now(), Received: time.Now(), Deadline: time.Now().Add(2 * time.Minute),
	})
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: map[string]string{interruption.Annotation: r.String()},
		Labels: map[string]string{corev1.LabelTopologyZone: "eu-west-1a"},
	}}, r
}

// A notice and an outcome are one POST each, in this order, of what Slack takes.
func TestNoticeAndOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{}
		w, _ := startSender(t, r, nil)
		node, rec := interrupted("node-1")
		w.Notify(notify.Noticed(node, rec))
		w.Notify(notify.Replaced(node, notify.ReasonReplacementRequested, interruption.Replacement{}))
		w.Notify(notify.Unreadable(node, errors.New("x")))
		w.Notify(notify.Ended(node, notify.ReasonDrained, interruption.Pods{Total: 2, Graceful: 2}, 92*time.Second))
		synctest.Wait()
		want := []string{
			"SpotInterruption on node-1: spot-interruption of i-0123456789abcdef0 from queue: deadline " + rec.Deadline.Format(time.RFC3339) + ", in 120 s; node cordoned",
			"Drained on node-1: 2 pods: 2 graceful, 0 truncated, 0 forced, 0 left; slack 92 s",
		}
		var texts []string
		for _, body := range r.got() {
			var payload struct{ Text string }
			if err := json.Unmarshal([]byte(body), &payload); err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			texts = append(texts, payload.Text)
		}
		if diff := cmp.Diff(want, texts); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if w.count(resultDelivered) != 2 {
			t.Errorf("%d delivered, want 2", w.count(resultDelivered))
		}
	})
}

// A receiver that is unreachable, overloaded or asks for a pause is tried again until it takes
// the webhook. Notifying never waits for it, and the outcome comes after the notice.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(n int) (*http.Response, error) {
			switch n {
			case 1:
				return nil, errors.New("connection refused")
			case 2:
				return answer(503, "<html>"), nil
			case 3:
				return answer(429, "", "Retry-After", "30"), nil
			}
			return answer(200, "ok"), nil
		}}
		w, log := startSender(t, r, nil)
		start := time.Now()
		node, rec := interrupted("node-1")
		w.Notify(notify.Noticed(node, rec))
		w.Notify(notify.Ended(node, notify.ReasonDrained, interruption.Pods{}, 0))
		if took := time.Since(start); took != 0 {
			t.Errorf("notifying took %s", took)
		}
		time.Sleep(time.Minute)
		got := r.got()
		if len(got) != 5 || !strings.Contains(got[3], "SpotInterruption") || !strings.Contains(got[4], "Drained") {
			t.Fatalf("bodies %q", got)
		}
		for i, least := range []time.Duration{300 * time.Millisecond, 600 * time.Millisecond, 30 * time.Second} {
			if pause := r.times[i+1].Sub(r.times[i]); pause < least || pause > 2*least+time.Second {
				t.Errorf("pause %d of %s, want about %s", i+1, pause, least)
			}
		}
		if w.count(resultDelivered) != 2 {
			t.Errorf("%d delivered, want 2", w.count(resultDelivered))
		}
		if n := strings.Count(log.String(), "\n"); n != 2 {
			t.Errorf("%d lines, want that it fails and that it works again:\n%s", n, log)
		}
	})
}

// A receiver that stays away costs a bounded time and a bounded number of webhooks.
func TestGivenUpAndDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(int) (*http.Response, error) {
			return nil, &url.Error{Op: "Post", URL: secretURL, Err: errors.New("no route to host")}
		}}
		w, log := startSender(t, r, nil)
		for i := range senders {
			w.Notify(notify.Noticed(interrupted(fmt.Sprint("sent-", i))))
		}
		synctest.Wait() // with the senders
		for i := range 4096 + 7 {
			w.Notify(notify.Noticed(interrupted(fmt.Sprint("node-", i))))
		}
		if w.count(resultDropped) != 7 {
			t.Errorf("%d dropped, want 7", w.count(resultDropped))
		}
		if n := strings.Count(log.String(), "webhooks dropped"); n != 1 {
			t.Errorf("said %d times, want once", n)
		}
		time.Sleep(giveUpAfter + time.Minute)
		if w.count(resultExpired) != queued+senders {
			t.Errorf("%d expired, want %d", w.count(resultExpired), queued+senders)
		}
		if strings.Contains(log.String(), "topsecret") || !strings.Contains(log.String(), "no route to host") {
			t.Errorf("log: %s", log)
		}
	})
}

// A kubelet that writes ten notices a second into its Node's record has 20 webhooks sent, and 20 more
// in each hour. Those of other nodes are all sent, each within a second, by a receiver that takes
// 200 ms for each.
func TestOneNodeFloodsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(int) (*http.Response, error) {
			time.Sleep(200 * time.Millisecond)
			return answer(200, "ok"), nil
		}}
		w, log := startSender(t, r, nil)
		others := 0
		for i := range 15 * 600 {
			w.Notify(notify.Noticed(interrupted("hostile")))
			if i >= 14*600 && i%10 == 0 {
				w.Notify(notify.Noticed(interrupted(fmt.Sprint("node-", i))))
				others++
			}
			time.Sleep(100 * time.Millisecond)
		}
		hostile, sent := 0, 0
		for _, body := range r.got() {
			if strings.Contains(body, "hostile") {
				hostile++
			} else {
				sent++
			}
		}
		if sent != others {
			t.Errorf("%d webhooks of other nodes sent in time, want all %d", sent, others)
		}
		if hostile != 20+4 {
			t.Errorf("%d webhooks of the hostile node in 15 minutes, want 20 and one every 3 minutes", hostile)
		}
		if dropped := w.count(resultDropped); dropped != 15*600-hostile || !strings.Contains(log.String(), "has had its share") {
			t.Errorf("%d dropped of %d; log: %s", dropped, 15*600, log)
		}
	})
}

// At the end of the process what still waits is sent, for a moment.
func TestEndOfTheProcess(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error // of the receiver
		result string
		least  time.Duration
	}{
		"works": {nil, resultDelivered, 0},
		"down":  {errors.New("away"), resultDropped, flushFor},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, _ := newSender(t, &receiver{answer: func(int) (*http.Response, error) {
					if tt.err != nil {
						return nil, tt.err
					}
					return answer(200, ""), nil
				}}, nil)
				node, rec := interrupted("node-1")
				for range 20 {
					w.Notify(notify.Noticed(node, rec))
				}
				ctx, stop := context.WithCancel(t.Context())
				stop()
				start := time.Now()
				_ = w.Run(ctx)
				if took := time.Since(start); took < tt.least || took > tt.least+time.Second {
					t.Errorf("ended after %s, want %s", took, tt.least)
				}
				if w.count(tt.result) != 20 {
					t.Errorf("%d %s, want all 20", w.count(tt.result), tt.result)
				}
			})
		})
	}
}

// Without a URL nothing is kept and nothing runs.
func TestNobodyToTell(t *testing.T) {
	registry := prometheus.NewRegistry()
	w := New(Options{Registerer: registry, Logger: zerolog.Nop()})
	node, rec := interrupted("node-1")
	w.Notify(notify.Noticed(node, rec))
	if err := w.Run(t.Context()); err != nil {
		t.Error(err)
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || len(families[0].Metric) != 4 {
		t.Errorf("%v, %v, want all four results from the start", families, err)
	}
}
