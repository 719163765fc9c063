package tied

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Process is a command that has been started. Its methods are safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// Run starts a command that ends with this process, and waits for it in the background.
func Run(cmd *exec.Cmd) (*Process, error) {
	if err := Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the error repeats what the state says
	}()
	return p, nil
}

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode waits for the end of the process. The code is -1 if a signal ended it.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Kill ends the process as the kernel does when it is out of memory, and returns when it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop ends the process as the kubelet does, with that grace period, and returns its exit code.
func (p *Process) Stop(grace time.Duration) int {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.Kill()
	}
	return p.ExitCode()
}

// WaitServing returns when a GET of the URL succeeds, which the process serves.
func (p *Process) WaitServing(ctx context.Context, url string) error {
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := Get(try, url)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("wait for %s: it ended with code %d", url, p.ExitCode())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last: %w", url, context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// client accepts any certificate: processes make theirs when they start, and nothing secret is sent.
var client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// Get returns the body of a successful answer. With another one, it returns the body, and an error that has it too.
func Get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return body, err
}
