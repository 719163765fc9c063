package drain

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// startsFor is how old the waves may be that plans are made with. They take all draining
// nodes together, so that they are worked out for all at once.
const startsFor = 250 * time.Millisecond

// starts keeps the last Waves of all draining nodes.
type starts struct {
	work func() map[types.UID]time.Time

	mu      sync.Mutex
	working bool
	last    map[types.UID]time.Time
	until   time.Time // when last is old
	floor   time.Time // no earlier than this, whatever changes: the work must not become all that is done
}

// get is the present waves. The map must not be changed.
func (s *starts) get() map[types.UID]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// refresh works them out anew if they are old, and returns the pods that have to go earlier
// than was thought.
func (s *starts) refresh() map[types.UID]bool {
	s.mu.Lock()
	now := time.Now()
	if s.working || now.Before(s.until) {
		s.mu.Unlock()
		return nil
	}
	s.working, s.until = true, now.Add(startsFor)
	s.mu.Unlock()
	fresh := s.work()

	s.mu.Lock()
	defer s.mu.Unlock()
	s.working = false
	s.floor = now.Add(10 * time.Since(now))
	s.until = later(s.until, s.floor)
	earlier := map[types.UID]bool{}
	for uid, at := range fresh {
		if before, ok := s.last[uid]; !ok || at.Before(before) {
			earlier[uid] = true
		}
	}
	s.last = fresh
	return earlier
}

// stale has the next refresh work.
func (s *starts) stale() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = s.floor
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
