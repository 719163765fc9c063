package controlplane

import (
	"path/filepath"
	"testing"

	"spot-handler/e2e/controlplane/internal/processes"
)

// logTail is how much of each component's log a failed test shows.
const logTail = 15

// ForTest starts a control plane that ends with the test. If the test fails, it shows the
// ends of the components' logs. A test whose control plane dies fails.
func ForTest(t testing.TB, options Options) *Cluster {
	t.Helper()
	cluster := start(t, options)
	endWith(t, cluster)
	return cluster
}

// endWith ends the cluster with the test.
func endWith(t testing.TB, cluster *Cluster) {
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, cluster)
		}
		stop(t, cluster)
	})
}

func start(t testing.TB, options Options) *Cluster {
	t.Helper()
	if options.Log == nil {
		options.Log = t.Output()
	}
	cluster, err := Start(t.Context(), options)
	if err != nil {
		t.Fatalf("start a control plane: %v", err)
	}
	return cluster
}

func stop(t testing.TB, cluster *Cluster) {
	t.Helper()
	if err := cluster.Stop(); err != nil {
		t.Errorf("stop the control plane: %v", err)
	}
}

func showLogs(t testing.TB, cluster *Cluster) {
	t.Helper()
	logs, _ := filepath.Glob(filepath.Join(cluster.Dir, "*.log"))
	for _, log := range logs {
		if log != cluster.auditLog {
			t.Logf("the end of %s:\n%s", filepath.Base(log), processes.Tail(log, logTail))
		}
	}
}
