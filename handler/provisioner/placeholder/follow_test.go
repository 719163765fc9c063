package placeholder

import (
	"testing"
	"testing/synctest"
	"time"

	"spot-handler/handler/provisioner"
)

func TestTakenPlaceholdersAreNotMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		a, b := owned("a", "ReplicaSet"), owned("b", "ReplicaSet")
		c.request(&rec, need(a, b))
		c.take(a)
		c.want(c.request(&rec, need(a, b)), provisioner.StateRequested, "")
		c.held("b")
		c.bind(b, "od-1")
		c.want(c.request(&rec, need(a, b)), provisioner.StateReady, "")

		rec = spot(2 * time.Minute)
		c = newCluster(t, rec, nil)
		c.request(&rec, need(a))
		c.take(a)
		c.want(c.request(&rec, need(a)), provisioner.StateFailed, "no room in time")
		c.want(c.request(&rec, need(a)), provisioner.StateFailed, "no room in time")
		c.held()
		c.templates(0)

		// One that had its place has found room; that another pod has come first does not
		// mean that there is less of it.
		rec = spot(2 * time.Minute)
		c = newCluster(t, rec, nil)
		c.request(&rec, need(a))
		c.bind(a, "od-1")
		c.take(a)
		c.want(c.request(&rec, need(a)), provisioner.StateReady, "")
		c.held()

		// But if the pods had to leave before all had theirs, there was no room.
		rec = spot(2 * time.Minute)
		c = newCluster(t, rec, nil)
		c.request(&rec, need(a, b))
		c.bind(a, "od-1")
		c.want(c.request(&rec, need(leaving(a), leaving(b))), provisioner.StateFailed, "no room in time")
	})
}

// A Node that is not Ready, or not known yet, is asked about again.
func TestRoomCountsOnReadyNodesOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		a := owned("a", "ReplicaSet")
		c.request(&rec, need(a))
		c.bind(a, "od-2")
		c.want(c.request(&rec, need(a)), provisioner.StateLaunched, "")
		c.mu.Lock()
		before := c.notified["node-1"]
		c.nodes["od-2"] = testNode("od-2")
		c.mu.Unlock()
		time.Sleep(again)
		synctest.Wait()
		if c.notified["node-1"] <= before {
			t.Error("not notified again")
		}
		c.want(c.request(&rec, need(a)), provisioner.StateReady, "")
	})
}

func TestNoRoomInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := rebalance()
		c := newCluster(t, rec, nil)
		a, b := owned("a", "ReplicaSet"), owned("b", "ReplicaSet")
		c.request(&rec, need(a, b))
		c.bind(a, "od-1")
		time.Sleep(patience - time.Minute)
		c.want(c.request(&rec, need(a, b)), provisioner.StateLaunched, "")
		c.mu.Lock()
		before := c.notified["node-1"]
		c.mu.Unlock()
		time.Sleep(time.Minute + sweepEvery)
		synctest.Wait()
		if c.notified["node-1"] <= before {
			t.Error("not notified that the time is over")
		}
		c.want(c.request(&rec, need(a, b)), provisioner.StateFailed, "no room in time for 1 of 2 placeholders")
		c.templates(0)
	})
}
