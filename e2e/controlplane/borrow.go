package controlplane

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// idleAtMost is how many clusters wait for the next borrower. One takes about 600 MiB, and
// a fortieth of a processor.
const idleAtMost = 3

// lender keeps the clusters of this process that nobody uses at the moment.
type lender struct {
	mu   sync.Mutex
	idle []idleCluster // the one that was used last is the last
}

type idleCluster struct {
	*Cluster
	karpenter bool
	heartbeat time.Duration
}

var shared lender

// Borrow is ForTest with a cluster that other tests of this process have used before and
// will use again, which spares most of the processor time of a start. It is all the test's
// until the end, and empty at its beginning. Objects of the same name may have been there
// before; a test that changes what the cluster is made of, such as definitions, admission
// or its processes, must not borrow.
//
// A cluster whose test has failed, or that cannot be emptied, is not lent again. TestMain
// should call ReturnAll after the tests.
func Borrow(t testing.TB, options Options) *Cluster {
	t.Helper()
	key := idleCluster{karpenter: options.Karpenter, heartbeat: options.Heartbeat}
	cluster := shared.take(key)
	if cluster == nil {
		fresh := options
		fresh.Audit, fresh.Reusable = true, true // the next borrower may want the log
		fresh.Log = os.Stderr                    // which outlives this test
		cluster = start(t, fresh)
	}
	key.Cluster = cluster
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, cluster)
			stop(t, cluster)
			return
		}
		select {
		case <-cluster.Done():
			stop(t, cluster) // which says why it has ended
			return
		default:
		}
		if err := cluster.Reset(context.WithoutCancel(t.Context())); err != nil {
			t.Logf("the next test gets another control plane: %v", err)
			_ = cluster.Stop()
			return
		}
		shared.put(key)
	})
	return cluster.lend(options)
}

// Take is ForTest with a cluster that others have used before, if one is waiting, for a test that
// must not borrow: the cluster ends with it.
func Take(t testing.TB, options Options) *Cluster {
	t.Helper()
	var cluster *Cluster
	if options.Gates == "" { // nobody lends one with others
		cluster = shared.take(idleCluster{karpenter: options.Karpenter, heartbeat: options.Heartbeat})
	}
	if cluster == nil {
		return ForTest(t, options)
	}
	endWith(t, cluster)
	return cluster.lend(options)
}

// lend shows of the cluster what the borrower has asked for.
func (c *Cluster) lend(options Options) *Cluster {
	c.AuditLog = ""
	if options.Audit {
		c.AuditLog = c.auditLog
	}
	return c
}

func (l *lender) take(like idleCluster) *Cluster {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range slices.Backward(l.idle) {
		if c.karpenter == like.karpenter && c.heartbeat == like.heartbeat {
			l.idle = slices.Delete(l.idle, i, i+1)
			select {
			case <-c.Done(): // a component has died, with nobody using it
				_ = c.Stop()
				continue
			default:
			}
			return c.Cluster
		}
	}
	return nil
}

func (l *lender) put(c idleCluster) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = append(l.idle, c)
	for len(l.idle) > idleAtMost {
		_ = l.idle[0].Stop()
		l.idle = slices.Delete(l.idle, 0, 1)
	}
}

// ReturnAll ends the clusters that wait for a borrower.
func ReturnAll() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for _, c := range shared.idle {
		_ = c.Stop()
	}
	shared.idle = nil
}
