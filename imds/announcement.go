package imds

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"spot-handler/handler/interruption"
)

const (
	// spotLead is how long ahead EC2 announces an interruption. The announcement does not
	// say when it was made; this estimates it.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
	spotLead = 2 * time.Minute

	// A time further away than these is not EC2's, or our clock is wrong. Either way it is
	// of no use. A spot instance can live long after a rebalance recommendation.
	maxAhead         = time.Hour
	maxSpotPast      = 24 * time.Hour
	maxRebalancePast = 365 * 24 * time.Hour
)

// parseInstanceAction reads spot/instance-action:
// {"action":"terminate","time":"2026-01-01T00:02:00Z"}.
//
// An action that EC2 does not document is reported, but counts as a termination: whatever it
// is, it comes at that time. Moving pods for nothing costs less than losing them.
func parseInstanceAction(body []byte, received time.Time) (announcement, error) {
	var doc struct {
		Action *string `json:"action"`
		Time   *string `json:"time"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return announcement{}, fault(reasonMalformed, "parse instance action: %w", err)
	}
	if doc.Action == nil || *doc.Action == "" {
		return announcement{}, fault(reasonMalformed, "parse instance action: no action")
	}
	at, err := parseTime(doc.Time, received, maxSpotPast)
	if err != nil {
		return announcement{}, fault(reasonMalformed, "parse instance action: time: %w", err)
	}

	a := announcement{name: at.Format(time.RFC3339), notice: interruption.Notice{
		Action:   *doc.Action,
		Noticed:  earlier(at.Add(-spotLead), received),
		Received: received,
		Deadline: at,
	}}
	switch *doc.Action {
	case interruption.ActionTerminate, interruption.ActionStop:
		return a, nil
	case interruption.ActionHibernate: // begins at once, without the two minutes
		a.notice.Noticed = earlier(at, received)
		a.notice.Deadline = received
		return a, nil
	default:
		a.notice.Action = interruption.ActionTerminate
		return a, fault(reasonUnknownAction, "parse instance action: unknown action %.64q, taken for a termination", *doc.Action)
	}
}

// parseRebalance reads events/recommendations/rebalance:
// {"noticeTime":"2026-01-01T00:00:00Z"}.
func parseRebalance(body []byte, received time.Time) (announcement, error) {
	var doc struct {
		NoticeTime *string `json:"noticeTime"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return announcement{}, fault(reasonMalformed, "parse rebalance recommendation: %w", err)
	}
	at, err := parseTime(doc.NoticeTime, received, maxRebalancePast)
	if err != nil {
		return announcement{}, fault(reasonMalformed, "parse rebalance recommendation: noticeTime: %w", err)
	}
	return announcement{name: at.Format(time.RFC3339), notice: interruption.Notice{
		Noticed:  earlier(at, received),
		Received: received,
	}}, nil
}

func parseTime(text *string, received time.Time, past time.Duration) (time.Time, error) {
	if text == nil {
		return time.Time{}, fmt.Errorf("missing")
	}
	at, err := time.Parse(time.RFC3339, *text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%.64q is not an RFC 3339 time", *text)
	}
	if at.Before(received.Add(-past)) || at.After(received.Add(maxAhead)) {
		return time.Time{}, fmt.Errorf("%s is implausible at %s", *text, received.UTC().Format(time.RFC3339))
	}
	return at.UTC(), nil
}

func parseInstanceID(body []byte, found bool) (string, error) {
	id := strings.TrimSpace(string(body))
	switch {
	case !found:
		return "", fault(reasonStatus, "read instance-id: not found")
	case !validName(id):
		return "", fault(reasonMalformed, "read instance-id: %.64q is not an instance id", id)
	}
	return id, nil
}

// validName accepts what can be a label's value, as EC2's own ids and the last segments
// of providerIDs can.
func validName(id string) bool { return id != "" && len(validation.IsValidLabelValue(id)) == 0 }

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
