// Package daemon runs spot-handler as a process of its own, the way it runs in a pod, for
// tests, benchmarks and the demo. It builds it from this checkout, gives it its flags and
// the emulators' addresses, and kills it at will.
//
// A daemon dies with the process that started it.
package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"spot-handler/e2e/asgemu"
	"spot-handler/e2e/internal/assets"
	"spot-handler/e2e/internal/loopback"
	"spot-handler/e2e/internal/tied"
)

// Build builds the daemon, once per process, and returns its path. Go's build cache makes
// that a second if nothing has changed.
var Build = sync.OnceValues(build)

func build() (string, error) {
	checkout, err := assets.Checkout()
	if err != nil {
		return "", err
	}
	cache, err := assets.CacheRoot()
	if err != nil {
		return "", err
	}
	// One directory per checkout, and a name per process until the build is complete:
	// several may build at the same time.
	dir := filepath.Join(cache, fmt.Sprintf("daemon-%.8x", sha256.Sum256([]byte(checkout))))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("build spot-handler: %w", err)
	}
	binary := filepath.Join(dir, "spot-handler")
	temporary := fmt.Sprintf("%s.%d", binary, os.Getpid())
	_, err = assets.Go(context.Background(), checkout, "build", "-trimpath", "-ldflags", "-s -w -X main.version=e2e", "-o", temporary, "./cmd/spot-handler")
	if err != nil {
		return "", fmt.Errorf("build spot-handler: %w", err)
	}
	return binary, os.Rename(temporary, binary)
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
	*tied.Process
	URL string // of /metrics, /healthz and /readyz

	log io.Writer

	mu    sync.Mutex
	part  []byte // of a line that is not complete
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
	d := &Daemon{URL: "http://" + address, log: o.Log}
	groups := o.Groups
	if groups == "" {
		groups = noGroups().URL
	}
	args := append(append([]string{}, o.Args...), "--kubeconfig="+o.Kubeconfig, "--http-addr="+address)
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(),
		"AWS_REGION=eu-west-1", "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_EC2_METADATA_DISABLED=false",
		"AWS_EC2_METADATA_SERVICE_ENDPOINT="+o.IMDS, "AWS_ENDPOINT_URL_SQS="+o.SQS,
		"AWS_ENDPOINT_URL_AUTO_SCALING="+groups, "AWS_ENDPOINT_URL_EC2="+groups)
	cmd.Env = append(cmd.Env, o.Env...)
	cmd.Stderr = (*lines)(d)
	d.Process, err = tied.Run(cmd)
	return d, err
}

// lines takes what a daemon writes apart.
type lines Daemon

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, p...)
	for {
		text, rest, complete := bytes.Cut(l.part, []byte("\n"))
		if !complete {
			return len(p), nil
		}
		if l.log != nil {
			fmt.Fprintf(l.log, "%s\n", text)
		}
		line := Line{}
		if err := json.Unmarshal(text, &line); err != nil {
			line = Line{"message": string(text)}
		}
		l.lines = append(l.lines, line)
		l.part = rest
	}
}

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

// Stop ends the daemon as the kubelet does, and returns its exit code.
func (d *Daemon) Stop() int { return d.Process.Stop(20 * time.Second) }

// WaitReady returns when /readyz says so.
func (d *Daemon) WaitReady(ctx context.Context) error {
	return d.WaitServing(ctx, d.URL+"/readyz")
}

// Metrics returns the text of /metrics; none if it does not answer.
func (d *Daemon) Metrics(ctx context.Context) string {
	text, _ := tied.Get(ctx, d.URL+"/metrics")
	return string(text)
}
