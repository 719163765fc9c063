// Package lifecycle answers the lifecycle hooks of Auto Scaling groups: how long a group
// waits, that it shall wait longer, and that it need not wait any more.
//
// Every method of [Client] makes one call at most, which is bounded in time, and may be
// called from many goroutines at once; so many calls are made at the same moment that the
// service need not refuse them. Nothing is tried again: who calls knows until when that is
// worth it. Completing a hook twice, or one that has run into its timeout, is [ErrGone],
// which leaves nothing to do.
package lifecycle
