package workloads

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spot-handler/drain/plan"
)

const (
	// contentType is that of a CloudEvent in structured mode.
	// https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md
	contentType = "application/cloudevents+json; charset=utf-8"

	// attempts, each of attemptTimeout, are what a pod gets: one that does not answer within
	// seconds has no more to say.
	attempts       = 2
	attemptTimeout = 2 * time.Second
	// pause is between them, so that a server which was just starting has a chance.
	pause = 500 * time.Millisecond

	// longestAnswer is how much of an answer is read, in bytes.
	longestAnswer = 4 << 10
)

// The values of workload_notices_total's label result.
const (
	resultDelivered = "delivered" // taken, without a word on when to leave
	resultAnswered  = "answered"  // taken, with one
	resultUnusable  = "unusable"  // taken, with an answer that means nothing
	resultRefused   = "refused"   // answered with another status than 2xx
	resultFailed    = "failed"    // not answered
	resultInvalid   = "invalid"   // not sent: the annotation or the pod's address is no good
	resultDropped   = "dropped"   // not sent: too many of its namespace waited, or it had waited for too long
)

func newResults(reg prometheus.Registerer) *prometheus.CounterVec {
	results := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "spot_handler_workload_notices_total",
		Help: "Notices to pods that ask for them, by what became of each.",
	}, []string{"result"})
	for _, r := range []string{resultDelivered, resultAnswered, resultUnusable, resultRefused, resultFailed, resultInvalid, resultDropped} {
		results.WithLabelValues(r)
	}
	return results
}

// newClient goes where it is sent and nowhere else: through no proxy, after no redirect. It keeps
// no connection, as a pod is notified once or twice in its life.
func newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: attemptTimeout}).DialContext,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: longestAnswer,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// outcome is what became of a notice.
type outcome struct {
	result string    // of spot_handler_workload_notices_total
	when   plan.When // what the pod has answered; empty if it does not say when it leaves
	err    error     // for the log
}

// post notifies one pod.
func (t *Notifier) post(ctx context.Context, target *url.URL, body []byte) outcome {
	for attempt := 1; ; attempt++ {
		o := t.attempt(ctx, target, body)
		if o.result != resultFailed || attempt == attempts || smithytime.SleepWithContext(ctx, pause) != nil {
			return o
		}
	}
}

func (t *Notifier) attempt(ctx context.Context, target *url.URL, body []byte) outcome {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return outcome{result: resultInvalid, err: fmt.Errorf("make request: %w", err)}
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", t.opts.UserAgent)
	resp, err := t.client.Do(req)
	if err != nil {
		return outcome{result: resultFailed, err: err}
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		result := resultRefused
		if resp.StatusCode >= 500 {
			result = resultFailed
		}
		return outcome{result: result, err: fmt.Errorf("answered with status %d", resp.StatusCode)}
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, longestAnswer+1))
	if err != nil {
		return outcome{result: resultUnusable, err: fmt.Errorf("read answer: %w", err)}
	}
	when, err := parseAnswer(text)
	switch {
	case err != nil:
		return outcome{result: resultUnusable, err: err}
	case when == "":
		return outcome{result: resultDelivered}
	}
	return outcome{result: resultAnswered, when: when}
}

// parseAnswer reads when a pod wants to leave; an empty answer says nothing about it.
func parseAnswer(text []byte) (plan.When, error) {
	if len(text) > longestAnswer {
		return "", fmt.Errorf("read answer: want at most %d bytes", longestAnswer)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return "", nil
	}
	var answer struct {
		When plan.When `json:"when"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return "", errors.New("read answer: no JSON object")
	}
	if answer.When != "" && !slices.Contains(plan.Whens(), answer.When) {
		return "", fmt.Errorf("read answer: when is %.40q, want one of %q", answer.When, plan.Whens())
	}
	return answer.When, nil
}
