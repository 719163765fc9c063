package awsfault

import (
	"sync"
	"time"
)

// maxDenials bounds the calls that are remembered. Beyond that all are forgotten, and
// reported again.
const maxDenials = 1000

// Denials remembers hopeless calls: each is reported once, and need not be made for every
// node. The zero value is ready, and safe for concurrent use.
type Denials struct {
	mu   sync.Mutex
	seen map[string]denial // by call
}

type denial struct {
	reason string
	at     time.Time
}

// Note keeps what came of a call, which the caller names. Where it is hopeless, it returns
// the reason, and whether that is news.
func (d *Denials) Note(call string, err error) (reason string, news bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	reason, hopeless := Hopeless(err)
	if !hopeless {
		if r := Of(err); r == "" || r == Refused { // the role allows it
			delete(d.seen, call)
		}
		return "", false
	}
	if d.seen == nil || len(d.seen) >= maxDenials {
		d.seen = map[string]denial{}
	}
	_, again := d.seen[call]
	d.seen[call] = denial{reason: reason, at: time.Now()}
	return reason, !again
}

// Standing is the reason why a call is hopeless, if it was noted less than age ago; else "".
func (d *Denials) Standing(call string, age time.Duration) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.seen[call]; time.Since(s.at) < age {
		return s.reason
	}
	return ""
}
