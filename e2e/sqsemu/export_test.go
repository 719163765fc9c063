package sqsemu

// Waiting is how many long polls wait at the queue.
func (q *Queue) Waiting() int {
	q.server.mu.Lock()
	defer q.server.mu.Unlock()
	return q.polls
}
