package asg

import (
	"context"
	"time"

	"spot-handler/handler/awsfault"
)

// callTimeout bounds one call: the service answers within a second or two.
const callTimeout = 10 * time.Second

// call makes one call within callTimeout and counts it.
func (b *Backend) call(ctx context.Context, service, action string, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := awsfault.Classify(service, action, do(bounded))
	if ctx.Err() == nil {
		b.metrics.calls.WithLabelValues(action, awsfault.Result(err)).Inc()
	}
	if reason, news := b.denials.Note(service+":"+action, err); news {
		b.log.Warn().Err(err).Str("reason", reason).Msg("no replacement through Auto Scaling groups")
	}
	return err
}

// denied is the reason why an action of Auto Scaling is not worth a call now, or "".
func (b *Backend) denied(action string) string {
	return b.denials.Standing("autoscaling:"+action, refusedFor)
}

// invalid reports whether the service would refuse the call again.
func invalid(err error) bool { return awsfault.Of(err) == awsfault.Refused }
