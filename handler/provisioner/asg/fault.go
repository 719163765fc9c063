package asg

import (
	"context"
	"sync"
	"time"

	"spot-handler/handler/awsfault"
)

// invalid reports whether the service would refuse the call again.
func invalid(err error) bool { return awsfault.Of(err) == awsfault.Refused }

// callTimeout bounds one call: the service answers within a second or two.
const callTimeout = 10 * time.Second

// call makes one call within callTimeout and counts it.
func (b *Backend) call(ctx context.Context, service, action string, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := awsfault.Classify(service, action, do(bounded))
	if ctx.Err() == nil {
		b.metrics.calls.WithLabelValues(action, string(awsfault.Of(err))).Inc()
	}
	if err == nil {
		b.denials.clear(service + ":" + action)
	} else if reason, ok := awsfault.Hopeless(err); ok && b.denials.first(service+":"+action, reason) {
		b.log.Warn().Err(err).Str("reason", reason).Msg("no replacement through Auto Scaling groups")
	}
	return err
}

// denials remembers what may not be called, so that it is reported once and not called
// for each node.
type denials struct {
	mu   sync.Mutex
	seen map[string]denial // by action
}

type denial struct {
	reason string
	until  time.Time
}

func (d *denials) first(action, reason string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, again := d.seen[action]
	if d.seen == nil {
		d.seen = map[string]denial{}
	}
	d.seen[action] = denial{reason: reason, until: time.Now().Add(refusedFor)}
	return !again
}

func (d *denials) clear(action string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.seen, action)
}

// standing is the reason why an action is not worth a call now, or "".
func (d *denials) standing(action string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.seen[action]; time.Now().Before(s.until) {
		return s.reason
	}
	return ""
}
