package imds

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"

	"spot-handler/handler/interruption"
)

const (
	testInstance  = "i-0123456789abcdef0"
	actionPath    = "/latest/meta-data/spot/instance-action"
	rebalancePath = "/latest/meta-data/events/recommendations/rebalance"
	lifecyclePath = "/latest/meta-data/autoscaling/target-lifecycle-state"
	scheduledPath = "/latest/meta-data/events/maintenance/scheduled"
	historyPath   = "/latest/meta-data/events/maintenance/history"
	idPath        = "/latest/meta-data/instance-id"
	tokenPath     = "/latest/api/token"
)

// wire plays the service below the SDK, so that a bubble's time passes: answer, if
// it is set and gives a response or an error, overrides what is there.
type wire struct {
	answer func(r *http.Request) (*http.Response, error)

	mu     sync.Mutex
	values map[string]string
	asked  map[string][]time.Time
}

func newWire() *wire {
	return &wire{values: map[string]string{idPath: testInstance}, asked: map[string][]time.Time{}}
}

func (w *wire) set(path, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.values[path] = value
}

func (w *wire) times(path string) []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]time.Time(nil), w.asked[path]...)
}

func (w *wire) Do(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.asked[r.URL.Path] = append(w.asked[r.URL.Path], time.Now())
	value, there := w.values[r.URL.Path]
	w.mu.Unlock()
	if w.answer != nil {
		if resp, err := w.answer(r); resp != nil || err != nil {
			return resp, err
		}
	}
	switch {
	case r.URL.Path == tokenPath:
		return response(http.StatusOK, "token"), nil
	case there:
		return response(http.StatusOK, value), nil
	}
	return response(http.StatusNotFound, ""), nil
}

func response(status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status,
		Header:     http.Header{"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": {"300"}},
		Body:       io.NopCloser(strings.NewReader(body)),
	}
}

func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

type fakeAccepter struct {
	AcceptFunc func(ctx context.Context, n interruption.Notice) (interruption.Verdict, error)

	mu  sync.Mutex
	got []interruption.Notice
}

var _ interruption.Accepter = (*fakeAccepter)(nil)

func (f *fakeAccepter) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	f.mu.Lock()
	f.got = append(f.got, n)
	f.mu.Unlock()
	if f.AcceptFunc != nil {
		return f.AcceptFunc(ctx, n)
	}
	return interruption.Accepted, nil
}

func (f *fakeAccepter) notices() []interruption.Notice {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]interruption.Notice(nil), f.got...)
}

// lines counts the log lines that contain a text.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

const testInterval = 2 * time.Second

var everything = []interruption.Kind{
	interruption.SpotInterruption, interruption.InstanceTerminating, interruption.RebalanceRecommendation, interruption.ScheduledEvent,
}

// start runs a poller over the wire until the test ends.
func start(t *testing.T, w *wire, a *fakeAccepter) (*Poller, *lines) {
	t.Helper()
	log := &lines{}
	p := New(Options{
		Client:     NewClientOver(aws.Config{}, w),
		Accepter:   a,
		NodeName:   "node-1",
		Kinds:      everything,
		Interval:   testInterval,
		Registerer: prometheus.NewRegistry(),
		Logger:     zerolog.New(log),
	})
	run(t, p)
	return p, log
}

func run(t *testing.T, p *Poller) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

func eventBody(id, state string, at time.Time) string {
	return fmt.Sprintf(`[{"EventId":%q,"Code":"instance-stop","State":%q,"NotBefore":%q}]`, id, state, at.UTC().Format(eventTime))
}

func spotBody(at time.Time) string {
	return `{"action":"terminate","time":"` + at.UTC().Format(time.RFC3339) + `"}`
}
