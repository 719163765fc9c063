package plan

import (
	"testing"
	"time"
)

// afterMore is how far apart slow requests begin in the lane after n more of them have taken so long, which ended all
// at once.
func (l *lane) afterMore(n int, took time.Duration) time.Duration {
	const room = 100
	for range n {
		l.begin(now)
		l.begin(now)
		l.end(now.Add(took), took)
		l.underWay--
	}
	l.begin(now)
	l.begin(now)
	defer func() { l.underWay -= 2 }()
	return l.opensAt(room).Sub(now)
}

// Slow evictions under a budget that lets many go begin closer together while none meets another at the budget's
// status, and farther apart while each does, within bounds.
func TestLane(t *testing.T) {
	l := &lane{}
	const webhook = 400 * time.Millisecond
	if apart := l.afterMore(0, webhook); apart != 50*time.Millisecond {
		t.Errorf("%s apart at first, want 50ms", apart)
	}
	if apart := l.afterMore(10, webhook); apart >= 35*time.Millisecond || apart <= 30*time.Millisecond {
		t.Errorf("%s apart after 10 that met none, want a third less", apart)
	}
	if apart := l.afterMore(30, webhook); apart != 18*time.Millisecond {
		t.Errorf("%s apart after 40 that met none, want 18ms", apart)
	}
	const met = webhook + 550*time.Millisecond
	if apart := l.afterMore(10, met); apart != 27*time.Millisecond {
		t.Errorf("%s apart after 10 at once that met another, want 27ms, as after one", apart)
	}
	for i := range 10 {
		l.begin(now)
		l.end(now.Add(time.Duration(i+1)*2*time.Second), met)
	}
	if apart := l.afterMore(0, webhook); apart != 70*time.Millisecond {
		t.Errorf("%s apart after seconds in which some meet another, want 70ms and no more", apart)
	}
	if at := l.opensAt(0); !at.IsZero() {
		t.Errorf("opens at %s with none under way, want at once", at)
	}
}

// A webhook that becomes slower for good is not taken for evictions that meet.
func TestLaneWithASlowerWebhook(t *testing.T) {
	l := &lane{}
	l.afterMore(40, 400*time.Millisecond)
	if apart := l.afterMore(150, 2*time.Second); apart != 18*time.Millisecond {
		t.Errorf("%s apart after 150 that took 2 s, want 18ms", apart)
	}
}

// However fast they get through, a budget that lets few go has no more under way, but for one that takes long.
func TestLaneOfATightBudget(t *testing.T) {
	l := &lane{}
	l.afterMore(40, 400*time.Millisecond)
	l.begin(now)
	l.begin(now)
	if at := l.opensAt(2); !at.Equal(now.Add(250 * time.Millisecond)) {
		t.Errorf("opens %s later with as many under way as are allowed, want 250ms", at.Sub(now))
	}
}

// A request that takes longer than others has met another, and sleeps; nobody knows before one has ended.
func TestLaneKnowsWhoSleeps(t *testing.T) {
	l := &lane{}
	l.begin(now)
	if got := l.awake(); got != 0 {
		t.Errorf("%s of the first, want no limit", got)
	}
	l.end(now, 10*time.Millisecond)
	if got := l.awake(); got != 0 {
		t.Errorf("%s where no webhook is slow, want no limit", got)
	}
	l.afterMore(1, 400*time.Millisecond)
	if got := l.awake(); got != 500*time.Millisecond {
		t.Errorf("%s with a webhook of 400ms, want 500ms", got)
	}
}
