package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"spot-handler/e2e/daemon"
	"spot-handler/e2e/internal/tied"
)

// required is how the interruption has to end: no pod is left or cut short, and the service loses
// no ready pod.
const required = "left=0,forced=0,truncated=0,dip=0"

var errEndedBadly = errors.New("the interruption did not end well")

// report is where the observer writes its page.
var report = filepath.Join(os.TempDir(), "spot-handler-demo.html")

// observe runs `spot-handler observe` of the node in this terminal, calls watching once that watches, and returns
// when the interruption is over: errEndedBadly if not as required.
func observe(ctx context.Context, kubeconfig, node string, watching func()) error {
	program, err := daemon.Build()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "observe", node, "--report="+report, "--require="+required)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stdout = os.Stdout // as it is: the observer looks whether that is a terminal
	said, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("start the observer: %w", err)
	}
	if err := tied.Start(cmd); err != nil {
		return fmt.Errorf("start the observer: %w", err)
	}
	lines := bufio.NewReader(said)
	if _, err := lines.ReadString('\n'); err == nil { // the first line says that it watches
		watching()
	}
	_, _ = io.Copy(os.Stderr, lines)
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &exit) && exit.ExitCode() == 3:
		return errEndedBadly
	case err != nil:
		return fmt.Errorf("observe: %w", err)
	}
	return nil
}
