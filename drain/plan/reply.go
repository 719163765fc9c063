package plan

import (
	"math/rand/v2"
	"time"
)

// Outcome is what the API server's reply to a request comes to.
type Outcome int

const (
	Accepted   Outcome = iota // 200, 201
	PodGone                   // 404
	Refused                   // by a budget, a terminating namespace or admission
	Unanswered                // within the time that the request has: admission might hang
	Transient                 // anything else: try again
)

// Reply is what the API server's reply to a request means.
type Reply struct {
	Outcome    Outcome
	Status     int32 // of HTTP; zero if there was no reply
	Reason     string
	OfBudget   bool // refused by a disruption budget
	Internal   bool // refused by an internal error, which can pass
	RetryAfter time.Duration
}

// Settled reports whether the request need not be made again.
func (r Reply) Settled() bool { return r.Outcome == Accepted || r.Outcome == PodGone }

// busy reports whether the API server has no room for the request.
func (r Reply) busy() bool { return r.Outcome == Transient && r.Status == 429 }

const (
	// EvictTimeout bounds a request. The API server answers in milliseconds. An admission webhook can
	// take up to 30 s, a quarter of all the time there is: it is better to ask again.
	EvictTimeout = 10 * time.Second

	// longEvictTimeout is for an eviction that was not answered within EvictTimeout: the API server
	// waits for a webhook for 30 s at most, and then says why it refuses the eviction.
	// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#timeouts
	longEvictTimeout = 31 * time.Second
)

// answersWithin is how long to wait for the answer to a request. An eviction that was not answered before gets more
// time, but not past its eviction deadline. A pod that is deleted then still has its grace period ahead, so an eviction
// that is requested just before the deadline, or later, is soon given up.
func answersWithin(now time.Time, d Decision, unansweredBefore bool) time.Duration {
	if d.Action != Evict {
		return EvictTimeout
	}
	most, least := EvictTimeout, EvictTimeout
	if unansweredBefore {
		most = longEvictTimeout
	}
	if d.DeletedIfRefused {
		least = patience
	}
	if d.Latest.IsZero() || !now.Before(d.Latest) && !d.DeletedIfRefused {
		return most
	}
	return min(most, max(least, d.Latest.Sub(now)))
}

// lateRetry is the longest wait for another attempt once the pod's eviction deadline has passed. A
// busy API server asks for up to 32 s, which is more than such a pod has.
const lateRetry = 2 * time.Second

// retryAfter is how long an attempt waits that follows one decided at asked: as the API server wants,
// and no less than backoff, but not past the pod's eviction deadline. If that has come while the request
// was under way there is no wait, as the decision might be another one now.
func retryAfter(now, asked, latest time.Time, reply Reply, backoff time.Duration) time.Duration {
	wait := max(reply.RetryAfter, backoff)
	switch {
	case latest.IsZero():
		return wait
	case asked.Before(latest):
		return min(wait, max(0, latest.Sub(now)))
	case reply.Outcome == Refused: // its budget ends the wait earlier
		return max(min(reply.RetryAfter, lateRetry), backoff)
	}
	return min(wait, lateRetry/2+backoff%(lateRetry/2)) // as backoff has jitter, so has this
}

// retryIn is when a refused eviction is tried again if nothing wakes it earlier: from half a
// second up to five, with jitter to keep the pods of one budget apart. A change of the
// budget makes retries prompt; this makes them certain.
func retryIn(attempt int, random *rand.Rand) time.Duration {
	const first, longest = 500 * time.Millisecond, 5 * time.Second
	d := min(first<<min(attempt-1, 10), longest)
	return d/2 + time.Duration(random.Int64N(int64(d/2)))
}
