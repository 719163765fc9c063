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

// observer is `spot-handler observe` in this terminal.
type observer struct {
	cmd    *exec.Cmd
	report string // where it writes the page
	ready  chan struct{}
	ended  chan error
}

// startObserver follows the node from now on. It ends by itself when the interruption is over.
func startObserver(ctx context.Context, kubeconfig, node string, plain bool, stdout, stderr io.Writer) (*observer, error) {
	program, err := daemon.Build()
	if err != nil {
		return nil, err
	}
	o := &observer{report: filepath.Join(os.TempDir(), "spot-handler-demo.html"), ready: make(chan struct{}), ended: make(chan error, 1)}
	o.cmd = exec.CommandContext(ctx, program, "observe", node, "--report="+o.report, "--require="+required)
	o.cmd.Cancel = func() error { return o.cmd.Process.Signal(os.Interrupt) }
	o.cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	if plain {
		o.cmd.Env = append(o.cmd.Env, "TERM=dumb")
	}
	o.cmd.Stdout = stdout // as it is: the observer looks whether that is a terminal
	said, err := o.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start observer: %w", err)
	}
	if err := tied.Start(o.cmd); err != nil {
		return nil, fmt.Errorf("start observer: %w", err)
	}
	go o.listen(said, stderr)
	return o, nil
}

// listen passes on what the observer says, but for the first line: that it watches.
func (o *observer) listen(said io.Reader, stderr io.Writer) {
	lines := bufio.NewScanner(said)
	if lines.Scan() {
		close(o.ready)
	}
	for lines.Scan() {
		fmt.Fprintln(stderr, lines.Text())
	}
	o.ended <- o.cmd.Wait()
}

// waitReady returns when the observer watches.
func (o *observer) waitReady(ctx context.Context) error {
	select {
	case <-o.ready:
		return nil
	case err := <-o.ended:
		return fmt.Errorf("start observer: %w", err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wait returns when the interruption is over: errEndedBadly if not as required.
func (o *observer) wait(ctx context.Context) error {
	err := <-o.ended
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
