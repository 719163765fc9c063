package imds

import (
	"time"

	"github.com/cenkalti/backoff/v5"

	"spot-handler/handler/interruption"
)

// A subject is one path of the metadata service on which EC2 announces one kind of
// interruption. The path answers 404 until then.
type subject struct {
	path string
	kind interruption.Kind

	// parse reads what the path holds. Its error carries a reason; one that is
	// usable comes with an announcement that is complete all the same.
	parse func(body []byte, received time.Time) (announcement, error)
}

// subjects lists what is polled, the most urgent first.
func subjects() []subject {
	return []subject{
		{"spot/instance-action", interruption.SpotInterruption, parseInstanceAction},
		{"events/recommendations/rebalance", interruption.RebalanceRecommendation, parseRebalance},
	}
}

// An announcement is what a path says: the parts of a notice that are found there,
// and the name by which the same announcement is known again.
type announcement struct {
	name   string
	notice interruption.Notice
}

// A watch is the state of polling one subject. It belongs to Run's goroutine, but
// for mail, whose other end is a delivery.
type watch struct {
	subject
	mail     chan interruption.Notice
	due      time.Time // zero: with the next round
	read     time.Time // last good reading
	backoff  *backoff.ExponentialBackOff
	reporter reporter
}

func newWatch(s subject) *watch {
	return &watch{subject: s, mail: make(chan interruption.Notice, 1), backoff: newBackoff()}
}

func (w *watch) succeed() {
	w.due, w.read = time.Time{}, time.Now()
	w.backoff.Reset()
}

func (w *watch) retry() {
	w.due = time.Now().Add(bounded(w.backoff.NextBackOff()))
}
