package workloads

import (
	"bytes"
	"io"
	"net/http"
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
