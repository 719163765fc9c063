package plan

import (
	"testing"
	"time"
)

// afterMore is how far apart slow requests begin in the lane after n more of them have taken so long.
func (l *lane) afterMore(n int, took time.Duration) time.Duration {
	const room = 100
	for range n {
		l.begin(now)
		l.begin(now)
		l.end(took)
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
	if apart := l.afterMore(10, webhook); apart >= 30*time.Millisecond || apart <= 10*time.Millisecond {
		t.Errorf("%s apart after 10 that met none, want less than 30ms", apart)
	}
	if apart := l.afterMore(30, webhook); apart != 10*time.Millisecond {
		t.Errorf("%s apart after 40 that met none, want 10ms", apart)
	}
	if apart := l.afterMore(5, webhook+550*time.Millisecond); apart < 15*time.Millisecond {
		t.Errorf("%s apart after 5 that met another, want more than 15ms", apart)
	}
	l.usual = webhook
	for range 40 {
		l.afterMore(1, webhook+550*time.Millisecond)
		l.afterMore(1, webhook+550*time.Millisecond)
		l.afterMore(1, webhook)
	}
	if apart := l.afterMore(0, webhook); apart < 63*time.Millisecond || apart > 70*time.Millisecond {
		t.Errorf("%s apart where two of three meet another, want nearly 70ms and no more", apart)
	}
	if at := l.opensAt(0); !at.IsZero() {
		t.Errorf("opens at %s with none under way, want at once", at)
	}
}

// A webhook that becomes slower for good is not taken for evictions that meet.
func TestLaneWithASlowerWebhook(t *testing.T) {
	l := &lane{}
	l.afterMore(40, 400*time.Millisecond)
	if apart := l.afterMore(100, 2*time.Second); apart != 10*time.Millisecond {
		t.Errorf("%s apart after a hundred that took 2 s, want 10ms", apart)
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
