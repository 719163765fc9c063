package handler

import (
	"context"
	"time"

	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
)

// toldBefore is how long before this process began to reconcile its predecessor is taken to have
// told of what was recorded: as long as it takes until another leads. What was recorded in
// between is told, twice rather than never.
const toldBefore = 10 * time.Second

// announce tells of a notice that somebody else has recorded: an operator who rehearses one, or
// a process on the node itself. Such a process only marks its Node and tells nobody, so that spot
// nodes need no right to make Events, and no webhook's secret. One that drains its own node has
// told when it accepted the notice.
func (v *visit) announce(context.Context) (done bool, err error) {
	told := v.known.told
	v.known.told = v.rec.Event
	byNode := v.opts.Node == "" && v.rec.Source == interruption.IMDS
	switch {
	case !byNode && !v.rec.Rehearsed(), told == v.rec.Event:
	case told == "" && v.rec.Received.Before(v.began.Add(-toldBefore)):
	default:
		v.opts.Events.Notify(notify.Noticed(v.node, v.rec))
	}
	return false, nil
}
