// Package daemon runs spot-handler as a process of its own, the way it runs in a pod, for
// tests, benchmarks and the demo. It builds it from this checkout, gives it its flags and
// the emulators' addresses, and kills it at will.
//
// A daemon dies with the process that started it.
package daemon

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"spot-handler/e2e/asgemu"
	"spot-handler/e2e/internal/loopback"
	"spot-handler/e2e/internal/tied"
)

var (
	buildOnce sync.Once
	buildErr  error
	binary    string
)

// Build builds the daemon, once per process, and returns its path. Go's build cache makes
// that a second if nothing has changed.
func Build() (string, error) {
	buildOnce.Do(func() {
		cache, err := os.UserCacheDir()
		if err != nil {
			buildErr = fmt.Errorf("find cache directory: %w", err)
			return
		}
		root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "spot-handler").Output()
		if err != nil {
			buildErr = fmt.Errorf("find checkout: %w", err)
			return
		}
		// One directory per checkout, and a name per process until the build is complete:
		// several may build at the same time.
		dir := filepath.Join(cache, "spot-handler", fmt.Sprintf("daemon-%x", sha256.Sum256(root))[:len("daemon-")+16])
		if buildErr = os.MkdirAll(dir, 0o755); buildErr != nil {
			return
		}
		binary = filepath.Join(dir, "spot-handler")
		temporary := fmt.Sprintf("%s.%d", binary, os.Getpid())
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=e2e", "-o", temporary, "spot-handler/cmd/spot-handler")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			buildErr = fmt.Errorf("build spot-handler: %w\n%s", err, out)
			return
		}
		buildErr = os.Rename(temporary, binary)
	})
	return binary, buildErr
}

// Options say how a daemon runs.
type Options struct {
	// Args are the mode and the flags; Start adds the kubeconfig and an HTTP address.
	Args       []string
	Kubeconfig string

	// Binary is another version's; empty means that of this checkout.
	Binary string

	// IMDS and SQS are the URLs of the emulators; empty if the mode has no use for one.
	IMDS, SQS string

	// Groups is the URL of the emulator of Auto Scaling and EC2. Empty means one without
	// any group, so no instance belongs to one.
	Groups string

	// Env holds additional variables, as NAME=value.
	Env []string

	// Log receives what the daemon logs, in addition to Lines; nil means nowhere.
	Log io.Writer
}

// noGroups is shared by all daemons of this process, and lives as long as it does.
var noGroups = sync.OnceValue(func() *asgemu.Server { return asgemu.Start(asgemu.Options{}) })

// Daemon is a running spot-handler.
type Daemon struct {
	URL string // of /metrics, /healthz and /readyz

	cmd  *exec.Cmd
	done chan struct{}
	code int

	mu    sync.Mutex
	lines []Line
}

// Line is one line of the daemon's log.
type Line map[string]any

// Message is what the line says.
func (l Line) Message() string { s, _ := l["message"].(string); return s }

// Start starts a daemon. It does not wait until it is ready.
func Start(o Options) (*Daemon, error) {
	path := o.Binary
	if path == "" {
		var err error
		if path, err = Build(); err != nil {
			return nil, err
		}
	}
	address, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	d := &Daemon{URL: "http://" + address, done: make(chan struct{})}
	groups := o.Groups
	if groups == "" {
		groups = noGroups().URL
	}
	args := append(append([]string{}, o.Args...), "--kubeconfig="+o.Kubeconfig, "--http-addr="+address)
	d.cmd = exec.Command(path, args...)
	d.cmd.Env = append(os.Environ(),
		"AWS_REGION=eu-west-1", "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_EC2_METADATA_DISABLED=false",
		"AWS_EC2_METADATA_SERVICE_ENDPOINT="+o.IMDS, "AWS_ENDPOINT_URL_SQS="+o.SQS,
		"AWS_ENDPOINT_URL_AUTO_SCALING="+groups, "AWS_ENDPOINT_URL_EC2="+groups)
	d.cmd.Env = append(d.cmd.Env, o.Env...)
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start spot-handler: %w", err)
	}
	if err := tied.Start(d.cmd); err != nil {
		return nil, fmt.Errorf("start spot-handler: %w", err)
	}
	go d.read(stderr, o.Log)
	return d, nil
}

func (d *Daemon) read(r io.Reader, log io.Writer) {
	defer close(d.done)
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		text := scanner.Text()
		if log != nil {
			fmt.Fprintln(log, text)
		}
		line := Line{}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			line = Line{"message": text}
		}
		d.mu.Lock()
		d.lines = append(d.lines, line)
		d.mu.Unlock()
	}
	_ = d.cmd.Wait()
	d.code = d.cmd.ProcessState.ExitCode()
}

// Pid is the daemon's process id.
func (d *Daemon) Pid() int { return d.cmd.Process.Pid }

// Lines returns what the daemon has logged so far: the lines whose message contains
// message; "" means all.
func (d *Daemon) Lines(message string) []Line {
	d.mu.Lock()
	defer d.mu.Unlock()
	var found []Line
	for _, l := range d.lines {
		if strings.Contains(l.Message(), message) {
			found = append(found, l)
		}
	}
	return found
}

// Kill ends the daemon as the kernel does when it is out of memory, and returns when it
// is gone.
func (d *Daemon) Kill() {
	_ = d.cmd.Process.Kill()
	<-d.done
}

// Stop ends the daemon as the kubelet does, and returns its exit code.
func (d *Daemon) Stop() int {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.done:
	case <-time.After(20 * time.Second):
		d.Kill()
	}
	return d.code
}

// Done is closed when the daemon has ended.
func (d *Daemon) Done() <-chan struct{} { return d.done }

// ExitCode is the exit code, once the daemon has ended.
func (d *Daemon) ExitCode() int { <-d.done; return d.code }

// WaitReady returns when /readyz says so.
func (d *Daemon) WaitReady(ctx context.Context) error {
	for {
		if text, ok := d.get(ctx, "/readyz"); ok {
			return nil
		} else if ctx.Err() != nil {
			return fmt.Errorf("wait for spot-handler to be ready: %w: %s", ctx.Err(), text)
		}
		select {
		case <-d.done:
			return fmt.Errorf("wait for spot-handler to be ready: it ended with code %d", d.code)
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Metrics returns the text of /metrics.
func (d *Daemon) Metrics(ctx context.Context) string {
	text, _ := d.get(ctx, "/metrics")
	return text
}

func (d *Daemon) get(ctx context.Context, path string) (string, bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.URL+path, nil)
	if err != nil {
		return err.Error(), false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error(), false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err == nil && resp.StatusCode == http.StatusOK
}
