package drain

import (
	"context"
	"testing"
	"testing/synctest"
)

func TestPaceFollowsTheAPIServer(t *testing.T) {
	p := newPace(32)
	round := func(busy bool) {
		n := p.limit
		for range n {
			p.begin(t.Context())
		}
		for range n {
			p.end(busy)
		}
	}
	round(true)
	if p.limit != 16 {
		t.Errorf("limit %d after a round of refusals, want it halved once", p.limit)
	}
	round(true)
	if p.limit != 8 {
		t.Errorf("limit %d after another round, want 8", p.limit)
	}
	for range 10 {
		round(true)
	}
	if p.limit != 1 {
		t.Errorf("limit %d, want never below 1", p.limit)
	}
	for range 100 {
		round(false)
	}
	if p.limit != 32 {
		t.Errorf("limit %d after many good rounds, want 32 again and no more", p.limit)
	}
}

func TestPaceHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := newPace(1)
		p.begin(ctx)
		began := make(chan bool, 2)
		go func() { began <- p.begin(ctx) }()
		synctest.Wait()
		if len(began) != 0 {
			t.Fatal("two requests at once, want one")
		}
		p.end(false)
		if !<-began {
			t.Fatal("the second was not let in")
		}
		go func() { began <- p.begin(ctx) }()
		synctest.Wait()
		cancel()
		p.wake()
		if <-began {
			t.Fatal("let in after the end")
		}
	})
}
