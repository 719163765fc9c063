package workloads

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"spot-handler/drain/plan"
)

// Whoever may write records can write a year that has no form in JSON once the grace period is taken
// off: no POST without a body is sent.
func TestNoticeThatCannotBeWritten(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a POST of %d bytes", r.ContentLength)
	}))
	defer server.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	notifier, _ := newNotifier(t, nil)
	early := time.Date(-1, 12, 31, 0, 0, 0, 0, time.UTC)
	notifier.Notify(t.Context(), interrupted(early.Add(time.Hour)), []plan.Decision{asks(podOf("a", plan.NoticeAnnotation, port), early)})
	eventually(t, "count of the notice", func() bool {
		var count dto.Metric
		return notifier.results.WithLabelValues(resultInvalid).Write(&count) == nil && count.GetCounter().GetValue() == 1
	})
	notifier.Wait()
}
