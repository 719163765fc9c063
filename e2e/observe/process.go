package observe

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"spot-handler/e2e/internal/loopback"
	"spot-handler/e2e/internal/tied"
)

// process is a server that runs in a directory of its own.
type process struct {
	URL string

	cmd  *exec.Cmd
	done chan struct{}
}

// start writes the configuration to dir, starts what command makes of its path and of the
// address to listen at, and waits until that is ready.
func start(ctx context.Context, name, dir, config string, command func(file, address string) []string) (*process, error) {
	file := filepath.Join(dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	address, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	args := command(file, address)
	p := &process{URL: "http://" + address, cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	if err := tied.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	if err := p.waitReady(ctx); err != nil {
		p.Close()
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("start %s: %w\n%s", name, err, text)
	}
	return p, nil
}

// readyTimeout is much longer than the second or two that a start takes.
const readyTimeout = time.Minute

func (p *process) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		if _, err := get(ctx, p.URL+"/-/ready"); err == nil {
			return nil
		} else if ctx.Err() != nil {
			return fmt.Errorf("wait until it is ready: %w", err)
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended with code %d", p.cmd.ProcessState.ExitCode())
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Close ends the process and returns when it is gone.
func (p *process) Close() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// get returns the body of a successful answer.
func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", resp.Status, body)
	}
	return body, nil
}
