package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"spot-handler/e2e/daemon"
	"spot-handler/e2e/internal/tied"
)

// Outcome is how a command has ended.
type Outcome struct {
	Args     []string
	Code     int
	Peak     int // MiB
	Took     time.Duration
	Out, Err []byte
}

// Command runs one of those for people, with an operator's kubeconfig. When ctx ends it is
// interrupted, as by Ctrl-C.
func Command(ctx context.Context, kubeconfig string, args ...string) (Outcome, error) {
	path, err := daemon.Build()
	if err != nil {
		return Outcome{}, err
	}
	o := Outcome{Args: args}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	if err := tied.Start(cmd); err != nil {
		return o, err
	}
	ended := make(chan struct{})
	peak := make(chan int, 1)
	go func() { peak <- peakOf(cmd.Process.Pid, 20*time.Millisecond, ended) }()
	err = cmd.Wait()
	close(ended)
	o.Peak, o.Took, o.Code = <-peak, time.Since(began), cmd.ProcessState.ExitCode()
	o.Out, o.Err = out.Bytes(), errs.Bytes()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) && ctx.Err() == nil {
		return o, err
	}
	return o, nil
}

// mib is what a process has had in RAM at most, VmHWM, in MiB; 0 if it has ended.
func mib(pid int) (peak int) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if name, value, _ := strings.Cut(line, ":"); name == "VmHWM" {
			_, _ = fmt.Sscanf(value, "%d kB", &peak)
		}
	}
	return peak >> 10
}

// ruinous is when a process is killed, for the sake of the machine, in MiB.
const ruinous = 3 << 10

// peakOf watches a process until it ends, and returns what it has taken at most.
func peakOf(pid int, every time.Duration, ended <-chan struct{}) (peak int) {
	for {
		peak = max(peak, mib(pid))
		if peak > ruinous {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		select {
		case <-ended:
			return peak
		case <-time.After(every):
		}
	}
}
