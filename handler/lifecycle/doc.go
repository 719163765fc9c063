// Package lifecycle answers the lifecycle hooks of Auto Scaling groups: how long a group waits,
// that it should wait longer, and that it need not wait any more.
//
// Every method of [Client] makes at most one call, bounded in time, and may be called from many
// goroutines at once. It limits how many calls run concurrently, so the service need not refuse
// them. It does not retry: the caller knows until when that is worthwhile. Completing a hook
// twice, or one that has timed out, is [ErrGone], which leaves nothing to do.
package lifecycle
