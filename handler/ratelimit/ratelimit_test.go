package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A node that does it without end gets its burst and then its rate, and another waits for none of it.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(2*time.Second, 3, 1)
		allowed := 0
		for range 100 {
			if p.Allow("hostile") {
				allowed++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if allowed != 3+4 {
			t.Errorf("allowed %d in 10 s, want a burst of 3 and one every 2 s", allowed)
		}
		if !p.Allow("other") {
			t.Error("another node has no share")
		}
	})
}

// What is done at once for a node is bounded, and so is how often it begins.
func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(2*time.Second, 4, 2)
		var mu sync.Mutex
		running, most, done := 0, 0, 0
		count := func(more int) {
			mu.Lock()
			defer mu.Unlock()
			running += more
			most = max(most, running)
			done += max(0, -more)
		}
		began := time.Now()
		for range 8 {
			go func() {
				_ = p.Do(t.Context(), "hostile", func() {
					count(1)
					time.Sleep(time.Second)
					count(-1)
				})
			}()
		}
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		if most != 2 || done != 4 {
			t.Errorf("%d at once, and %d done, want 2 at once and the burst of 4", most, done)
		}
		if _ = p.Do(t.Context(), "other", func() {}); time.Since(began) != 2500*time.Millisecond {
			t.Errorf("another node waits %s", time.Since(began)-2500*time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if done != 8 {
			t.Errorf("%d done, want 8", done)
		}
	})
}

// A wait that is given up takes nothing of the share.
func TestDoEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(time.Hour, 1, 2)
		p.Allow("a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.Do(ctx, "a", func() { t.Error("done before its time") }); err == nil {
			t.Error("no error though the context has ended")
		}
		time.Sleep(59 * time.Minute)
		if !p.Allow("a") {
			t.Error("what was given up counts")
		}
	})
}

// Nodes come and go for years.
func TestUnusedSharesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(time.Second, 2, 1)
		for i := range 10_000 {
			p.Allow(fmt.Sprint(i))
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(p.shares); n > 2*leastPruned {
			t.Errorf("%d shares, want at most %d", n, 2*leastPruned)
		}
	})
}

// Looking for unused shares costs as much as there are shares: it is done when they have become twice as many, and not
// for each node that comes.
func TestUnusedSharesAreSoughtSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(time.Hour, 1, 1)
		for i := range 64 {
			p.Allow(fmt.Sprint("busy-", i))
		}
		if p.prune != 64 {
			t.Errorf("sought at %d shares, want 64 at first", p.prune)
		}
		p.Allow("busy-64")
		if len(p.shares) != 65 || p.prune != 128 {
			t.Errorf("%d shares, sought next at %d, want all 65, as they are in use, and 128", len(p.shares), p.prune)
		}
		time.Sleep(2 * time.Hour)
		for i := range 62 {
			p.Allow(fmt.Sprint("later-", i))
		}
		if len(p.shares) != 127 {
			t.Errorf("%d shares, want 127: it is too early to seek", len(p.shares))
		}
		p.Allow("the 128th")
		p.Allow("the 129th")
		if len(p.shares) != 64 || p.prune != 126 {
			t.Errorf("%d shares, sought next at %d, want the 64 in use, and twice the 63 there were", len(p.shares), p.prune)
		}
	})
}

// A share is unused if a new one would be the same.
func TestUnusedAreThoseThatCountNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(time.Second, 2, 1)
		p.Allow("a")
		if p.unused(p.shares["a"]) {
			t.Error("one of two is taken, and the share counts as unused")
		}
		time.Sleep(2 * time.Second)
		if !p.unused(p.shares["a"]) {
			t.Error("all has come back, and the share counts as used")
		}
		go func() { _ = p.Do(t.Context(), "a", func() { time.Sleep(time.Minute) }) }()
		time.Sleep(10 * time.Second)
		if p.unused(p.shares["a"]) {
			t.Error("something is under way, and the share counts as unused")
		}
		time.Sleep(time.Minute)
		for range 2 {
			if !p.unused(p.shares["a"]) {
				t.Error("nothing is under way, and the share counts as used: looking might have taken its places")
			}
		}
	})
}
