package plan

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Half a second at first, then twice as long each time up to five; the last half of it at random.
func TestRetryIn(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	longest := []time.Duration{500, 1000, 2000, 4000, 5000}
	for attempt := 1; attempt < 50; attempt++ {
		want := longest[min(attempt, len(longest))-1] * time.Millisecond
		var most time.Duration
		for range 200 {
			d := retryIn(attempt, random)
			most = max(most, d)
			if d < want/2 || d > want {
				t.Fatalf("attempt %d waits %s, want %s to %s", attempt, d, want/2, want)
			}
		}
		if most < want*9/10 {
			t.Errorf("attempt %d waits %s at most, of %s", attempt, most, want)
		}
	}
}

// The wait for an answer is ten seconds, or as long as a webhook can take if the last answer did not come, but it does
// not go past the eviction deadline. If the pod is deleted then, three seconds are enough just before it and after.
func TestAnswersWithin(t *testing.T) {
	for name, tt := range map[string]struct {
		left       time.Duration // until the eviction deadline; zero is none
		deleted    bool
		unanswered bool
		want       time.Duration
	}{
		"the first time":                       {time.Minute, false, false, 10 * time.Second},
		"without a deadline":                   {0, true, false, 10 * time.Second},
		"again":                                {time.Minute, true, true, 31 * time.Second},
		"again, without a deadline":            {0, false, true, 31 * time.Second},
		"again, up to the deadline":            {20 * time.Second, false, true, 20 * time.Second},
		"again, just before it":                {time.Second, false, true, 10 * time.Second},
		"again, past it":                       {-time.Second, false, true, 31 * time.Second},
		"deleted, up to the deadline":          {5 * time.Second, true, false, 5 * time.Second},
		"deleted, just before it":              {time.Second, true, false, 3 * time.Second},
		"deleted, again and just before it":    {time.Second, true, true, 3 * time.Second},
		"deleted, past it":                     {-time.Minute, true, false, 3 * time.Second},
		"deleted, up to the deadline, again":   {20 * time.Second, true, true, 20 * time.Second},
		"deleted, far from it, the first time": {20 * time.Second, true, false, 10 * time.Second},
	} {
		d := Decision{Action: Evict, DeletedIfRefused: tt.deleted}
		if tt.left != 0 {
			d.Latest = now.Add(tt.left)
		}
		if got := answersWithin(now, d, tt.unanswered); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
		if d.Action = SurgeNow; answersWithin(now, d, tt.unanswered) != 10*time.Second {
			t.Errorf("%s: a surge has another time", name)
		}
	}
}

func TestRetryAfterTable(t *testing.T) {
	const backoff = 3300 * time.Millisecond
	blocked, full := Reply{Outcome: Refused, RetryAfter: 10 * time.Second}, Reply{Outcome: Transient, RetryAfter: 32 * time.Second}
	for name, tt := range map[string]struct {
		asked, latest time.Time
		reply         Reply
		want          time.Duration
	}{
		"no deadline":                 {now, time.Time{}, full, 32 * time.Second},
		"deadline is far":             {now, now.Add(time.Hour), full, 32 * time.Second},
		"no Retry-After":              {now, now.Add(time.Hour), Reply{Outcome: Transient}, backoff},
		"deadline is near":            {now, now.Add(time.Second), full, time.Second},
		"deadline came meanwhile":     {now.Add(-2), now.Add(-1), full, 0},
		"past it, busy":               {now, now, full, 1300 * time.Millisecond},
		"past it, failed":             {now, now, Reply{Outcome: Transient}, 1300 * time.Millisecond},
		"past it, refused for a time": {now, now, blocked, backoff},
		"past it, refused":            {now, now, Reply{Outcome: Refused}, backoff},
	} {
		if got := retryAfter(now, tt.asked, tt.latest, tt.reply, backoff); got != tt.want {
			t.Errorf("%s: waits %s, want %s", name, got, tt.want)
		}
	}
}
