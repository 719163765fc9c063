package main

import (
	"runtime"
	"runtime/metrics"
	"testing/synctest"
	"time"

	"spot-handler/e2e/sim"
)

// What a round may take, with the cluster that it plays and two replicas. Most have up to 200 goroutines, and 10 MiB
// alive; what all rounds so far have left behind counts as well.
const (
	mostGoroutines = 500
	mostAlive      = 64 << 20
)

// What may be left once all is over, beyond what was there before anything happened: a few goroutines that come and go,
// some for each Node whose record stands, and the watches that all of these share.
const (
	comeAndGo = 4
	ofNode    = 7
	shared    = 24
	// endsWithin is how long after a drain its watches may last.
	endsWithin = time.Minute
)

// beforeAll is the quiet time at the beginning of a round, in which both replicas start.
const beforeAll = 19 * time.Second

// memoryOf holds the memory of a round to its bounds.
type memoryOf struct {
	world *sim.World
	began time.Time
	idle  int // goroutines before anything happens
}

// look is called again and again.
func (m *memoryOf) look() {
	synctest.Wait() // let goroutines finish that are busy at this moment
	n := runtime.NumGoroutine()
	if time.Since(m.began) < beforeAll {
		m.idle = max(m.idle, n)
	}
	m.world.Bound("goroutines", n, mostGoroutines)
	alive := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(alive)
	m.world.Bound("bytes of live heap", int(alive[0].Value.Uint64()), mostAlive)
}

// finish is called once all is over, and the replicas still run.
func (m *memoryOf) finish() {
	for began := time.Now(); m.world.Scene.StartsWell(beforeAll); time.Sleep(10 * time.Second) {
		synctest.Wait()
		n, most := runtime.NumGoroutine(), m.idle+comeAndGo
		if standing := m.world.Standing(); standing > 0 {
			most += shared + ofNode*standing
		}
		if n <= most {
			break
		}
		if time.Since(began) > endsWithin {
			m.world.Bound("goroutines once all is over", n, most)
			break
		}
	}
	m.world.Bound("bytes of live heap once all is over", int(heap()), mostAlive)
}
