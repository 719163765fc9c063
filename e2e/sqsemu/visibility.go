package sqsemu

import (
	"container/heap"
	"time"
)

// A message moves between three places:
//
//	           send                    receive
//	─────────────────────► visible ───────────────► hidden (in flight) ──► gone
//	   │                      ▲  ▲                     │        delete
//	   │ with delay           │  └─────────────────────┘
//	   └──► hidden (delayed) ─┘     timeout, or changed to 0
//
// advance makes the moves that time alone causes. Everything that reads the places calls it first, so only long
// polls need the timer, which wakes them.

// show makes a message deliverable.
func (q *Queue) show(m *message) {
	q.unlink(m)
	m.State = Visible
	m.visible = q.visible.PushBack(m)
	q.wake(1)
}

// hide keeps a message from being delivered until a time.
func (q *Queue) hide(m *message, state State, until time.Time) {
	q.unlink(m)
	m.State, m.visibleAt = state, until
	heap.Push(&q.hidden, m)
	q.setWakeUp()
}

// unlink takes a message from where it is.
func (q *Queue) unlink(m *message) {
	if m.visible != nil {
		q.visible.Remove(m.visible)
		m.visible = nil
	}
	if m.hidden >= 0 {
		heap.Remove(&q.hidden, m.hidden)
	}
}

// advance shows the messages whose time has come.
func (q *Queue) advance(now time.Time) {
	for len(q.hidden) > 0 && !q.hidden[0].visibleAt.After(now) {
		q.show(q.hidden[0])
	}
}

// sweep drops the messages that have outlived the retention period, wherever they are. It looks at all of them, so
// it runs only where all are counted; a receive checks the age of those that it meets.
func (q *Queue) sweep(now time.Time) {
	q.advance(now)
	for _, m := range q.messages {
		if !m.gone() && q.outlived(m, now) {
			q.remove(m, Expired, now)
		}
	}
}

func (q *Queue) outlived(m *message, now time.Time) bool {
	return now.Sub(m.Sent) >= q.attributes.seconds(retentionPeriod)
}

// wake lets n long polls look again.
func (q *Queue) wake(n int) {
	for ; n > 0 && q.waiters.Len() > 0; n-- {
		close(q.waiters.Remove(q.waiters.Front()).(chan struct{}))
	}
}

func (q *Queue) setWakeUp() {
	if len(q.hidden) > 0 && !q.dropped {
		q.wakeUp.Reset(time.Until(q.hidden[0].visibleAt))
	}
}

func (q *Queue) wakeForHidden() {
	q.server.mu.Lock()
	defer q.server.mu.Unlock()
	q.advance(time.Now())
	q.setWakeUp()
}

// hiddenHeap has the message that becomes visible first at its top.
type hiddenHeap []*message

func (h hiddenHeap) Len() int           { return len(h) }
func (h hiddenHeap) Less(i, j int) bool { return h[i].visibleAt.Before(h[j].visibleAt) }
func (h hiddenHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].hidden, h[j].hidden = i, j
}

func (h *hiddenHeap) Push(x any) {
	m := x.(*message)
	m.hidden = len(*h)
	*h = append(*h, m)
}

func (h *hiddenHeap) Pop() any {
	last := len(*h) - 1
	m := (*h)[last]
	m.hidden = -1
	(*h)[last] = nil
	*h = (*h)[:last]
	return m
}
