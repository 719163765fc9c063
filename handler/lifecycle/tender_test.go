package lifecycle

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"spot-handler/handler/interruption"
)

// broken answers nothing, and counts the attempts to complete a hook.
type broken struct{ completions int }

var errBroken = errors.New("no answer")

func (*broken) Limits(context.Context, interruption.Hook) (Limits, error) { return Limits{}, errBroken }

func (*broken) Heartbeat(context.Context, string, interruption.Hook) error { return errBroken }

func (b *broken) Complete(context.Context, string, string, interruption.Hook) error {
	b.completions++
	return errBroken
}

// The hook of a node that is forgotten is left, and that of one that is gone is completed all the same.
func TestForget(t *testing.T) {
	for orphaned, want := range map[bool]bool{false: false, true: true} {
		synctest.Test(t, func(t *testing.T) {
			hooks := &broken{}
			tender := NewTender(TenderOptions{Hooks: hooks, Notify: func(string) {}, Logger: zerolog.Nop()})
			rec := interruption.Record{
				Kind: interruption.InstanceTerminating, Instance: "i-1", Phase: interruption.Released, Received: time.Now(),
				Hooks: []interruption.Hook{{Group: "workers", Name: "drain", Token: "t", Since: time.Now()}},
			}
			ctx, stop := context.WithCancel(t.Context())
			tender.Answer(ctx, "node-a", tender.Learn("node-a", rec))
			time.Sleep(time.Minute)
			if hooks.completions < 2 {
				t.Fatalf("%d attempts in a minute, want several", hooks.completions)
			}
			if orphaned {
				tender.Orphaned(ctx, "node-a", rec)
			}
			tender.Forget("node-a")
			time.Sleep(time.Second)
			before := hooks.completions
			time.Sleep(5 * time.Minute)
			if more := hooks.completions > before; more != want {
				t.Errorf("orphaned: %t: %d attempts before and %d after it was forgotten", orphaned, before, hooks.completions)
			}
			stop()
			tender.Wait()
		})
	}
}
