package workloads

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An annotation that cannot be written is tried again where that can help, and that it must not be
// written is said once. Where notices are off nothing is asked of anybody.
func TestNotesThatFail(t *testing.T) {
	for name, tt := range map[string]struct {
		off      bool
		codes    []int // the last one again and again
		attempts int
		warnings int
	}{
		"written":          {codes: []int{200}, attempts: 2},
		"server is busy":   {codes: []int{500, 503, 429, 429, 200}, attempts: 6},
		"server is broken": {codes: []int{500}, attempts: 2 * noteAttempts},
		"pod is gone":      {codes: []int{404}, attempts: 2},
		"another has come": {codes: []int{409}, attempts: 2},
		"forbidden":        {codes: []int{403}, attempts: 2, warnings: 1},
		"off":              {off: true, codes: []int{200}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				client := clientThrough(t, roundTrip(func(r *http.Request) (*http.Response, error) {
					code := tt.codes[min(attempts, len(tt.codes)-1)]
					attempts++
					return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
				}), corev1.SchemeGroupVersion, "/api")
				var log bytes.Buffer
				notifier := New(Options{
					On: !tt.off, Pods: client, Events: &meaningless{},
					Registerer: prometheus.NewRegistry(), Logger: zerolog.New(&log).Level(zerolog.WarnLevel),
				})
				in := interrupted(time.Now().Add(2 * time.Minute))
				for _, pod := range []*corev1.Pod{podOf("a", plan.NoticeAnnotation, plan.NoticeFiles), podOf("b", plan.NoticeAnnotation, plan.NoticeFiles)} {
					notifier.Notify(t.Context(), in, []plan.Decision{asks(pod, in.Deadline)})
					time.Sleep(time.Minute)
					synctest.Wait()
				}
				if warnings := strings.Count(log.String(), "\n"); attempts != tt.attempts || warnings != tt.warnings {
					t.Errorf("%d attempts, %d warnings, want %d and %d\n%s", attempts, warnings, tt.attempts, tt.warnings, &log)
				}
			})
		})
	}
}

// Waiting for the Notifier includes waiting for the annotations that are being written.
func TestWaitForNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientThrough(t, roundTrip(func(r *http.Request) (*http.Response, error) {
			time.Sleep(3 * time.Second)
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
		}), corev1.SchemeGroupVersion, "/api")
		notifier := New(Options{On: true, Pods: client, Events: &meaningless{}, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop()})
		began := time.Now()
		in := interrupted(began.Add(2 * time.Minute))
		notifier.Notify(t.Context(), in, []plan.Decision{asks(podOf("a", plan.NoticeAnnotation, plan.NoticeFiles), in.Deadline)})
		notifier.Wait()
		if waited := time.Since(began); waited != 3*time.Second {
			t.Errorf("waited for %v, want 3s", waited)
		}
	})
}

// A pod whose annotations say the right thing already is not written again, as after a change of the leader. Between
// attempts that fail there is a second more each time.
func TestNotesThatStand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deadline := time.Now().Add(2 * time.Minute)
		right, wrong := deadline.UTC().Format(time.RFC3339), deadline.Add(time.Second).UTC().Format(time.RFC3339)
		for name, tt := range map[string]struct {
			notes   map[string]string
			written bool
		}{
			"none":                {nil, true},
			"right":               {map[string]string{plan.DeadlineAnnotation: right, plan.EvictByAnnotation: right}, false},
			"one is missing":      {map[string]string{plan.DeadlineAnnotation: right}, true},
			"one is wrong":        {map[string]string{plan.DeadlineAnnotation: right, plan.EvictByAnnotation: wrong}, true},
			"the other is wrong":  {map[string]string{plan.DeadlineAnnotation: wrong, plan.EvictByAnnotation: right}, true},
			"both are wrong":      {map[string]string{plan.DeadlineAnnotation: wrong, plan.EvictByAnnotation: wrong}, true},
			"right, and one more": {map[string]string{plan.DeadlineAnnotation: right, plan.EvictByAnnotation: right, "a": "b"}, false},
		} {
			var attempts []time.Duration
			began := time.Now()
			client := clientThrough(t, roundTrip(func(r *http.Request) (*http.Response, error) {
				attempts = append(attempts, time.Since(began))
				return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
			}), corev1.SchemeGroupVersion, "/api")
			notifier := New(Options{On: true, Pods: client, Events: &meaningless{}, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop()})
			pod := podOf("a", plan.NoticeAnnotation, plan.NoticeFiles)
			maps.Copy(pod.Annotations, tt.notes)
			notifier.Notify(t.Context(), interrupted(deadline), []plan.Decision{asks(pod, deadline)})
			time.Sleep(time.Minute)
			synctest.Wait()
			want := []time.Duration{0, time.Second, 3 * time.Second, 6 * time.Second, 10 * time.Second}
			if !tt.written {
				want = nil
			}
			if !slices.Equal(attempts, want) {
				t.Errorf("%s: attempts after %v, want %v", name, attempts, want)
			}
		}
	})
}
