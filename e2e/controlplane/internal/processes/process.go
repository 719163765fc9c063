package processes

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"spot-handler/e2e/internal/tied"
)

// tailLines is how much of a log is shown when a component dies: a panic's
// message and its first frames.
const tailLines = 25

// longestLine is how much is shown of a line: some hold whole objects.
const longestLine = 300

// command is how to start a component.
type command struct {
	name string
	path string
	args []string
	env  []string

	health string // URL; empty if there is none
}

// process is a component that has been started. Its output goes to <name>.log.
type process struct {
	*tied.Process
	name, health string
	ending       atomic.Bool // it is killed on purpose
}

// kill ends the process at once: it holds nothing that needs an orderly end.
func (p *process) kill() {
	p.ending.Store(true)
	p.Kill()
}

// group holds the processes of one control plane. Its methods must not be called concurrently.
type group struct {
	ctx       context.Context // done when a process ends by itself, or all are stopped
	cancel    context.CancelCauseFunc
	dir       string
	processes []*process
}

func newGroup(dir string) *group {
	g := &group{dir: dir}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	return g
}

func (g *group) start(c command) error {
	log, err := os.OpenFile(g.log(c.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", c.name, err)
	}
	defer log.Close()
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir = g.dir
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Stdout, cmd.Stderr = log, log
	// A Ctrl-C at the terminal is for this process, which then ends the components.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &process{name: c.name, health: c.health}
	if p.Process, err = tied.Run(cmd); err != nil {
		return err
	}
	g.processes = append(g.processes, p)
	go func() {
		<-p.Done()
		if !p.ending.Load() {
			g.cancel(g.death(p))
		}
	}()
	return nil
}

// waitHealthy returns when all processes say that they are healthy.
func (g *group) waitHealthy(ctx context.Context) error {
	for _, p := range g.processes {
		if p.health == "" {
			continue
		}
		if err := p.WaitServing(ctx, p.health); err != nil {
			return err
		}
	}
	return nil
}

// end ends one process, and the others go on.
func (g *group) end(name string) {
	for i, p := range g.processes {
		if p.name == name {
			p.kill()
			g.processes = slices.Delete(g.processes, i, i+1)
			return
		}
	}
}

// stop ends all processes. The error is why one had ended by itself.
func (g *group) stop() error {
	for _, p := range g.processes {
		select {
		case <-p.Done():
			g.cancel(g.death(p))
		default:
		}
	}
	cause := context.Cause(g.ctx)
	g.cancel(nil)
	for _, p := range slices.Backward(g.processes) {
		p.kill()
	}
	return cause
}

func (g *group) log(name string) string { return filepath.Join(g.dir, name+".log") }

// death is why a process ended by itself.
func (g *group) death(p *process) error {
	return fmt.Errorf("%s ended unexpectedly with code %d; the end of its log:\n%s", p.name, p.ExitCode(), Tail(g.log(p.name), tailLines))
}

func (g *group) pids() []int {
	var pids []int
	for _, p := range g.processes {
		pids = append(pids, p.Pid())
	}
	return pids
}

// Tail returns the last lines of the file, indented, or why it cannot read them.
func Tail(path string, lines int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return "\t" + err.Error()
	}
	all := strings.Split(string(bytes.TrimSpace(content)), "\n")
	all = all[max(0, len(all)-lines):]
	for i, line := range all {
		all[i] = fmt.Sprintf("\t%.*s", longestLine, line)
	}
	return strings.Join(all, "\n")
}
