package drain

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// inbox is what Run's goroutine has to take in, in the order in which it has come.
type inbox struct {
	news    chan struct{} // something has come
	ended   chan struct{} // closed when nothing is taken in any more
	running atomic.Bool   // something is

	mu   sync.Mutex
	list []func(now time.Time)
}

func newInbox() *inbox {
	return &inbox{news: make(chan struct{}, 1), ended: make(chan struct{})}
}

// put never blocks.
func (i *inbox) put(take func(now time.Time)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.list = append(i.list, take)
	select {
	case i.news <- struct{}{}:
	default:
	}
}

// all takes out all that has come.
func (i *inbox) all() []func(now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	list := i.list
	i.list = nil
	return list
}

func (i *inbox) open() { i.running.Store(true) }

func (i *inbox) close() {
	i.running.Store(false)
	close(i.ended)
	i.all()
}

// ask has Run's goroutine do something, and waits until it is done. It is not done if ctx or Run end before.
func (i *inbox) ask(ctx context.Context, do func(now time.Time)) {
	done := make(chan struct{})
	var taken atomic.Bool // by Run's goroutine, or given up
	i.put(func(now time.Time) {
		defer close(done)
		if taken.CompareAndSwap(false, true) {
			do(now)
		}
	})
	select {
	case <-done:
		return
	case <-ctx.Done():
	case <-i.ended:
	}
	if !taken.CompareAndSwap(false, true) {
		<-done // it is being done
	}
}
