package drain

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Who asks waits until Run's goroutine has answered, but no longer than its own context, and then
// nothing is done for it any more.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInbox()
		var order []string
		take := func() {
			for _, f := range i.all() {
				f(time.Now())
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		i.ask(ctx, func(time.Time) { order = append(order, "too late") })
		if since := time.Since(synctestStart); since != time.Second {
			t.Errorf("waited %s, want a second", since)
		}
		take()
		i.put(func(time.Time) { order = append(order, "first") })
		go func() {
			<-i.news
			time.Sleep(time.Second)
			take()
		}()
		i.ask(t.Context(), func(time.Time) { order = append(order, "second") })
		if len(order) != 2 || order[0] != "first" || order[1] != "second" {
			t.Errorf("done are %q, want first, second", order)
		}
		i.close()
		i.ask(t.Context(), func(time.Time) { t.Error("done after the end") })
	})
}

// synctestStart is when each bubble begins.
var synctestStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
