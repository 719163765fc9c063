package readcache

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestLifetime(t *testing.T) {
	forbidden, other := errors.New("forbidden"), errors.New("connection refused")
	one, all := For(time.Minute, time.Second, forbidden), For(time.Minute, time.Second, nil)
	for _, tt := range []struct {
		err      error
		one, all time.Duration
	}{
		{nil, time.Minute, time.Minute},
		{fmt.Errorf("list: %w", forbidden), time.Second, time.Second},
		{other, 0, time.Second},
	} {
		if got := one(tt.err); got != tt.one {
			t.Errorf("%v is kept for %s, want %s", tt.err, got, tt.one)
		}
		if got := all(tt.err); got != tt.all {
			t.Errorf("%v is kept for %s where all are, want %s", tt.err, got, tt.all)
		}
	}
}

// What is kept is given out again as it is; what has no lifetime takes the place of nothing.
func TestKeptAnswer(t *testing.T) {
	c := &Cache[string]{Lifetime: For(time.Minute, 0, nil)}
	c.Put("key", Answer[string]{Value: "kept", Asked: time.Now()})
	c.Put("key", Answer[string]{Err: errors.New("connection refused"), Asked: time.Now()})
	if got, err := c.Get(t.Context(), "key"); got != "kept" || err != nil {
		t.Errorf("%q, %v; want what was kept", got, err)
	}
}
