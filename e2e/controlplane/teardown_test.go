package controlplane_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"spot-handler/e2e/controlplane"
)

// holdVariable makes this test binary start a cluster, report it, and wait to be killed.
const holdVariable = "SPOT_HANDLER_E2E_TEST_HOLD"

func TestMain(m *testing.M) {
	if os.Getenv(holdVariable) == "" {
		os.Exit(m.Run())
	}
	os.Exit(hold())
}

func hold() int {
	cluster, err := controlplane.Start(context.Background(), controlplane.Options{})
	if err != nil {
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(remainsOf(cluster)); err != nil {
		return 1
	}
	select {}
}

// remains is what could be left of a cluster.
type remains struct {
	Processes []int
	Dir       string
}

func remainsOf(cluster *controlplane.Cluster) remains {
	return remains{Processes: cluster.Processes, Dir: cluster.Dir}
}

// checkEnded waits for the processes to end. It polls: the kernel does not notify us of the deaths of processes that
// are not our children.
func (r remains) checkEnded(t *testing.T, within time.Duration) {
	t.Helper()
	if len(r.Processes) == 0 || r.Dir == "" {
		t.Fatalf("nothing to check: %+v", r)
	}
	for deadline := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		var left []int
		for _, pid := range r.Processes {
			if !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				left = append(left, pid)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes left after %s: %v", within, left)
		}
	}
}

// checkGone checks that neither processes nor the directory are there.
func (r remains) checkGone(t *testing.T) {
	t.Helper()
	r.checkEnded(t, 0)
	if _, err := os.Stat(r.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("directory %s: %v", r.Dir, err)
	}
}

func TestStopLeavesNothing(t *testing.T) {
	cluster, err := controlplane.Start(t.Context(), controlplane.Options{Karpenter: true, Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	left := remainsOf(cluster)
	if len(left.Processes) != 6 {
		t.Errorf("processes: %v, want 6", left.Processes)
	}
	if err := cluster.Stop(); err != nil {
		t.Error(err)
	}
	left.checkGone(t)
	if err := cluster.Stop(); err != nil {
		t.Errorf("stop a second time: %v", err)
	}
}

// A test that is killed takes its control plane along, and the next one removes what it has written.
func TestKilledProcessLeavesNothing(t *testing.T) {
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	client := exec.CommandContext(t.Context(), executable)
	client.Env = append(os.Environ(), holdVariable+"=1")
	client.Stderr = t.Output()
	stdout, err := client.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	var left remains
	if err := json.NewDecoder(stdout).Decode(&left); err != nil {
		t.Fatalf("read from the client: %v", err)
	}
	if err := client.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = client.Wait() // killed
	left.checkEnded(t, 10*time.Second)
	next, err := controlplane.Start(t.Context(), controlplane.Options{Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	left.checkGone(t)
	if err := next.Stop(); err != nil {
		t.Error(err)
	}
}

func TestDeathOfComponentIsExplained(t *testing.T) {
	cluster, err := controlplane.Start(t.Context(), controlplane.Options{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	left := remainsOf(cluster)
	if err := syscall.Kill(left.Processes[0], syscall.SIGKILL); err != nil { // etcd, the first to be started
		t.Fatal(err)
	}
	select {
	case <-cluster.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the cluster goes on without etcd")
	}
	if err := cluster.Stop(); err == nil || !strings.Contains(err.Error(), "etcd ended unexpectedly") {
		t.Errorf("got %v, want that etcd ended", err)
	}
	left.checkGone(t)
}
