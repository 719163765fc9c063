package sim

import (
	"container/heap"
	"fmt"
	"time"

	"spot-handler/handler/interruption"
)

// Crowd is a large cluster that loses many spot nodes at once. Nothing goes wrong in it, but that its API server has
// only so many seats, and takes a while for each request.
type Crowd struct {
	Nodes, Lost int
	Pods        int           // on each node that is lost
	Grace       int64         // of each pod, in seconds
	Boot        time.Duration // of a replacement

	// Seats is how many requests of the daemon the API server works on at once; the others wait in line.
	Seats int
	// Takes is how long it works on one.
	Takes time.Duration
}

// CrowdAt is when the nodes of a crowd are lost.
const CrowdAt = time.Minute

// NewCrowd returns the world of a crowd. Call it inside of a bubble.
func NewCrowd(c Crowd) *World {
	s := Scene{
		Seed:      1,
		Flags:     []string{"--replacement-ttl=1m"},
		Workloads: []Workload{{Name: "app-0", Kind: "Pod", CPU: 100, Grace: c.Grace, Stop: 2 * time.Second, Start: time.Second}},
		Karpenter: Karpenter{Boot: c.Boot},
	}
	lost := make([]Node, c.Lost)
	for i := range lost {
		lost[i] = Node{Name: fmt.Sprintf("spot-%d", i), Pool: PoolSpot, Zone: zones[i%len(zones)], CPU: 8000}
		s.Losses = append(s.Losses, Loss{
			Node: lost[i].Name, Kind: interruption.SpotInterruption, Lead: interruption.SpotNotice,
			At: CrowdAt, Delay: time.Second, Copies: 1, Takes: true,
		})
	}
	w := New(s)
	w.crowd = c
	w.Do(func() {
		for _, n := range lost {
			w.buildNode(n)
			for i := range c.Pods {
				w.settled(podOf(w.workloads["app-0"], fmt.Sprintf("%s-%d", n.Name, i)), w.workloads["app-0"], n.Name, i)
			}
		}
		for i := range c.Nodes - c.Lost {
			w.buildNode(Node{Name: fmt.Sprintf("calm-%d", i), Pool: PoolSpot, Zone: zones[i%len(zones)], CPU: 8000})
		}
		w.judge.meet()
	})
	return w
}

// Crowded is what has become of a crowd.
type Crowded struct {
	Cordoned time.Duration // from the announcement until the last node was cordoned
	Replaced time.Duration // likewise, until the last replacement was asked for
	Ended    time.Duration // likewise, until the last pod was asked to end
	Evicted  int           // pods that were asked to end
	Late     int           // of them, those that had less than their grace period
	Left     int           // pods that were not asked, or not before their machine ended
	Requests int           // of the daemon
	Queued   time.Duration // the longest that one has waited for a seat
}

// Crowded returns what has become of the crowd so far.
func (w *World) Crowded() (c Crowded) {
	w.Do(func() {
		began := w.began.Add(CrowdAt)
		for _, life := range w.judge.nodes {
			if at := life.recorded[interruption.SpotInterruption]; !at.IsZero() {
				c.Cordoned = max(c.Cordoned, at.Sub(began))
			}
		}
		for _, life := range w.judge.pods {
			switch {
			case life.asked.IsZero(), life.lost && !life.asked.Before(life.gone): // its machine had ended
				c.Left++
				continue
			case !life.whole:
				c.Late++
			}
			c.Evicted++
			c.Ended = max(c.Ended, life.asked.Sub(began))
		}
		if at := w.judge.lastReplaced; !at.IsZero() {
			c.Replaced = at.Sub(began)
		}
		c.Requests, c.Queued = w.judge.requests, w.seats.longest
	})
	return c
}

// seats are those of a crowd's API server, by when each is free.
type seats struct {
	free    times
	longest time.Duration
}

type times []time.Time

func (t times) Len() int           { return len(t) }
func (t times) Less(i, j int) bool { return t[i].Before(t[j]) }
func (t times) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *times) Push(x any)        { *t = append(*t, x.(time.Time)) }
func (t *times) Pop() any {
	last := len(*t) - 1
	x := (*t)[last]
	*t = (*t)[:last]
	return x
}

// takeSeat returns how long a request takes that comes now, with what it waits for a seat. The lock is held.
func (w *World) takeSeat() time.Duration {
	now, s := time.Now(), &w.seats
	start := now
	if len(s.free) == w.crowd.Seats {
		if first := heap.Pop(&s.free).(time.Time); first.After(start) {
			start = first
		}
	}
	heap.Push(&s.free, start.Add(w.crowd.Takes))
	s.longest = max(s.longest, start.Sub(now))
	return start.Add(w.crowd.Takes).Sub(now)
}
