package readcache

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

var errDenied = errors.New("denied")

// counting returns a cache whose reads take a second, and the number of them.
func counting(err error) (*Cache[string], *int) {
	reads := 0
	return &Cache[string]{
		Read: func(_ context.Context, key string) (string, error) {
			time.Sleep(time.Second)
			reads++
			return fmt.Sprint(key, reads), err
		},
		Lifetime: func(err error) time.Duration {
			switch err {
			case nil:
				return time.Hour
			case errDenied:
				return time.Minute
			}
			return 0
		},
	}, &reads
}

// However many ask, they share one read: also who has found nothing when the read is under way,
// and comes to share it when it has ended.
func TestReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, reads := counting(nil)
		for range 100 {
			go func() {
				if got, err := c.Get(t.Context(), "a"); got != "a1" || err != nil {
					t.Errorf("%s, %v", got, err)
				}
			}()
		}
		synctest.Wait()
		if _, fresh := c.Last("a"); fresh {
			t.Fatal("there is an answer already: this shows nothing")
		}
		time.Sleep(2 * time.Second)
		if got, err := c.share(t.Context(), "a"); got != "a1" || err != nil || *reads != 1 {
			t.Errorf("%s, %v after %d reads, want the answer of the first", got, err, *reads)
		}
		if got, _ := c.Get(t.Context(), "b"); got != "b2" {
			t.Errorf("another key: %s", got)
		}
	})
}

func TestAnswersAreKept(t *testing.T) {
	for name, tt := range map[string]struct {
		err   error
		after time.Duration // the first was asked for
		reads int
	}{
		"value, fresh":  {nil, time.Hour - 1, 1},
		"value, stale":  {nil, time.Hour, 2},
		"denied, fresh": {errDenied, time.Minute - 1, 1},
		"denied, stale": {errDenied, time.Minute, 2},
		"not kept":      {errors.New("broken"), time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, reads := counting(tt.err)
				start := time.Now()
				for range 2 {
					if _, err := c.Get(t.Context(), "a"); !errors.Is(err, tt.err) {
						t.Error(err)
					}
					time.Sleep(tt.after - time.Since(start))
				}
				if *reads != tt.reads {
					t.Errorf("%d reads, want %d", *reads, tt.reads)
				}
			})
		})
	}
}

// Who gives up takes the answer from nobody.
func TestReadOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, reads := counting(nil)
		impatient, cancel := context.WithTimeoutCause(t.Context(), time.Second/2, errors.New("impatient"))
		defer cancel()
		if _, err := c.Get(impatient, "a"); err == nil || err.Error() != "impatient" {
			t.Errorf("error %v, want the cause", err)
		}
		if got, err := c.Get(t.Context(), "a"); got != "a1" || err != nil || *reads != 1 {
			t.Errorf("%s, %v after %d reads", got, err, *reads)
		}
	})
}

func TestCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := counting(nil)
		for i := range crowded {
			c.Put(fmt.Sprint(i), Answer[string]{Asked: time.Now()})
		}
		time.Sleep(time.Hour)
		c.Put("fresh", Answer[string]{Asked: time.Now()})
		if len(c.kept) != 1 {
			t.Errorf("%d are kept, want the fresh one", len(c.kept))
		}
		for i := range 2 * most {
			c.kept[fmt.Sprint(i)] = Answer[string]{Asked: time.Now()}
		}
		c.Put("last", Answer[string]{Asked: time.Now()})
		if _, fresh := c.Last("last"); !fresh || len(c.kept) > most {
			t.Errorf("%d are kept, the last one: %v", len(c.kept), fresh)
		}
	})
}
