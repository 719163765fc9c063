package plan

import (
	"fmt"
	"testing"
	"time"
)

// fill begins as many requests as there is room for, each of a namespace of its own.
func (l *limiter) fill(at time.Time, made *int) (seats []*seat) {
	for l.free() {
		*made++
		seats = append(seats, l.begin(at, fmt.Sprint(*made), 0))
	}
	return seats
}

// With as many seats as the drainer has, a namespace that is alone has 32 requests under way, and another finds room at
// once. With those that have lent their seats, there are 128 at most.
func TestSeatsOfALoneNamespace(t *testing.T) {
	l, of := newLimiter(37), map[string]int{}
	for _, namespace := range []string{"shop", "late"} {
		for l.free() && l.room(namespace) {
			l.begin(time.Time{}, namespace, 0)
			of[namespace]++
		}
	}
	if of["shop"] != 32 || of["late"] != 4 || l.most+l.lendable() != 128 {
		t.Errorf("%v with a seat, want 32 and 4; %d without one, want 91", of, l.lendable())
	}
}

func TestLimiterFollowsTheAPIServer(t *testing.T) {
	l, made := newLimiter(32), 0
	round := func(busy bool) {
		for _, s := range l.fill(now, &made) {
			l.end(now, s, busy)
		}
	}
	if round(true); l.limit != 16 {
		t.Errorf("limit %d after a round of refusals, want it halved once", l.limit)
	}
	if round(true); l.limit != 8 {
		t.Errorf("limit %d after another round, want 8", l.limit)
	}
	for range 10 {
		round(true)
	}
	if l.limit != 1 {
		t.Errorf("limit %d, want never below 1", l.limit)
	}
	for range 100 {
		round(false)
	}
	if l.limit != 32 || len(l.of)+len(l.seats) != 0 {
		t.Errorf("limit %d after many good rounds, want 32 again and no more; kept are %d namespaces", l.limit, len(l.of))
	}
}

// Requests that are not answered for seconds lend their seats, but there is a limit to how
// many are under way, and none is lent soon after the API server has turned one away.
func TestRequestsThatHangLendTheirSeats(t *testing.T) {
	l, made, at := newLimiter(2), 0, now
	var seats []*seat
	after := func(d time.Duration, want int) {
		t.Helper()
		at = at.Add(d)
		l.lend(at)
		if seats = append(seats, l.fill(at, &made)...); made != want {
			t.Errorf("%d requests sent, want %d", made, want)
		}
	}
	end := func(busy bool) {
		l.end(at, seats[0], busy)
		seats = seats[1:]
	}
	after(0, 2)
	if next := l.lend(at); !next.Equal(at.Add(patience)) {
		t.Errorf("looks again after %s, want %s", next.Sub(at), patience)
	}
	after(patience-time.Millisecond, 2)
	after(time.Millisecond, 4)
	after(patience, 6)
	after(patience, 8)
	after(10*patience, 8) // four for each seat

	end(true) // too busy: the answers to all that are under way count once
	after(0, 8)
	if l.limit != 1 || l.active+l.lent != 7 {
		t.Errorf("limit %d with %d under way, want 1 with 7", l.limit, l.active+l.lent)
	}
	for range 7 {
		end(true)
	}
	after(0, 9)
	after(calm-time.Millisecond, 9)
	if l.limit != 1 || l.lent != 0 {
		t.Errorf("limit %d and %d lent, want 1 and none", l.limit, l.lent)
	}
	after(time.Millisecond, 10) // it has not refused anything for a while, and hangs still
}

// A namespace whose requests all hang has at most seven eighths of the seats, half of them while any of its
// requests has lent its own, and half of what can be lent. There is always room for another's.
func TestRequestsOfOneNamespaceThatHang(t *testing.T) {
	l := newLimiter(4)
	for at := now; at.Before(now.Add(time.Minute)); at = at.Add(time.Second) {
		l.lend(at)
		for l.free() && l.room("hostile") {
			l.begin(at, "hostile", 0)
		}
		if own := l.of["hostile"]; own.active > 3 || own.active > 2 && own.lent > 0 || own.lent > 6 {
			t.Fatalf("of one namespace %+v are under way, want at most 3 of 4 seats, 2 while any is lent, and 6 of 12 that are lent", own)
		}
		if !l.free() || !l.room("shop") {
			t.Fatal("no room for another namespace's")
		}
	}
	if own := l.of["hostile"]; own.lent < 4 {
		t.Errorf("%+v, want some that have lent their seats", own)
	}
}

// Requests that sleep lend their seats earlier, and their namespace keeps its own: it can have three times as many
// more under way, less a half for others.
func TestRequestsThatSleep(t *testing.T) {
	l, made := newLimiter(8), 0
	fill := func(at time.Time, want int) {
		t.Helper()
		l.lend(at)
		for l.free() && l.room("shop") {
			l.begin(at, "shop", 500*time.Millisecond)
			made++
		}
		if made != want {
			t.Errorf("%d made after %s, want %d", made, at.Sub(now), want)
		}
	}
	fill(now, 7)
	if next := l.lend(now); !next.Equal(now.Add(500 * time.Millisecond)) {
		t.Errorf("looks again after %s, want 500ms", next.Sub(now))
	}
	fill(now.Add(499*time.Millisecond), 7)
	fill(now.Add(500*time.Millisecond), 14)
	fill(now.Add(time.Second), 19)
	fill(now.Add(time.Minute), 19)
	for len(l.seats) > 0 {
		l.end(now.Add(time.Minute), l.seats[0], false)
	}
	if l.active+l.lent+len(l.of) != 0 {
		t.Errorf("%d under way, %d lent, %d namespaces after all have ended", l.active, l.lent, len(l.of))
	}
}

// In a hurry, as many are under way as are needed, up to four for each seat. A namespace can have seven eighths of what
// is lent and of the seats, so there is room for others. Soon after a refusal, nothing is hurried.
func TestHurry(t *testing.T) {
	l, made := newLimiter(4), 0
	hurry := func(atOnce, want int) {
		t.Helper()
		l.fill(now, &made)
		l.hurry(now, atOnce)
		if l.fill(now, &made); made != want {
			t.Errorf("%d under way where %d are needed, want %d", made, atOnce, want)
		}
	}
	hurry(0, 4)
	hurry(4, 4)
	hurry(6, 6)
	hurry(100, 10)
	hurry(100, 14)
	hurry(100, 16)
	hurry(100, 16)

	l = newLimiter(4)
	for range 5 {
		for l.free() && l.room("shop") {
			l.begin(now, "shop", 0)
		}
		l.hurry(now, 100)
	}
	if own := l.of["shop"]; own.active != 3 || own.asleep != 10 || own.lent != 0 {
		t.Errorf("a namespace in a hurry has %+v, want three seats, and ten requests without one", own)
	}

	// A request without an answer for three seconds hangs, hurry or not.
	at := now.Add(patience)
	l.lend(at)
	if own := l.of["shop"]; own.active != 3 || own.asleep != 0 || own.lent != 10 || l.room("shop") {
		t.Errorf("a namespace whose requests hang has %+v, room for more: %t; want none, and ten that have lent their seats", own, l.room("shop"))
	}
	if l.hurry(at, 100) {
		t.Error("more seats are lent for a namespace whose requests hang")
	}
	for len(l.seats) > 0 {
		l.end(at, l.seats[0], false)
	}
	if l.active+l.lent+len(l.of) != 0 {
		t.Errorf("%d under way, %d lent, %d namespaces after all have ended", l.active, l.lent, len(l.of))
	}

	l, made = newLimiter(4), 0
	l.end(now.Add(time.Millisecond-calm), l.fill(now, &made)[0], true)
	before := l.active
	if l.hurry(now, 100); l.active != before {
		t.Errorf("%d seats lent within %v of a refusal", before-l.active, calm)
	}
	if l.hurry(now.Add(time.Millisecond), 100); l.active != 0 {
		t.Errorf("%d seats not lent later", l.active)
	}
}
