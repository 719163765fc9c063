package drain

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// startsFor is how old the waves can be that plans are made with. They depend on all
// draining nodes, so they are worked out for all at once.
const startsFor = 250 * time.Millisecond

// waveStarts keeps the last waves of all draining nodes.
type waveStarts struct {
	work func() plan.Waves

	mu      sync.Mutex
	working bool
	last    plan.Waves
	until   time.Time // when last is old
	floor   time.Time // the earliest next work, whatever changes: otherwise nothing else would get done
}

// get is the current waves. They must not be changed.
func (s *waveStarts) get() plan.Waves {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// refresh works the waves out again if they are old, and returns the pods that now have to
// go earlier.
func (s *waveStarts) refresh() map[types.UID]bool {
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
	s.until = interruption.Later(s.until, s.floor)
	earlier := map[types.UID]bool{}
	for uid, at := range fresh.Starts {
		if before, ok := s.last.Starts[uid]; !ok || at.Before(before) {
			earlier[uid] = true
		}
	}
	s.last = fresh
	return earlier
}

// stale makes the next refresh work.
func (s *waveStarts) stale() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = s.floor
}
