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
}

// process is a component that has been started. Its output goes to <name>.log.
type process struct {
	name   string
	log    string
	cmd    *exec.Cmd
	exited chan struct{} // closed once the process is reaped

	ending atomic.Bool // it is killed on purpose
}

// kill ends the process at once: it holds nothing that needs an orderly end.
func (p *process) kill() {
	p.ending.Store(true)
	_ = p.cmd.Process.Kill()
	<-p.exited
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
	p := &process{name: c.name, log: filepath.Join(g.dir, c.name+".log"), exited: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", c.name, err)
	}
	defer log.Close()
	p.cmd = exec.Command(c.path, c.args...)
	p.cmd.Dir = g.dir
	p.cmd.Env = append(os.Environ(), c.env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// A Ctrl-C at the terminal is for this process, which then ends the components.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := tied.Start(p.cmd); err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	g.processes = append(g.processes, p)
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // the error repeats what the state says
		if !p.ending.Load() {
			g.cancel(fmt.Errorf("%s ended unexpectedly: %s; the end of its log:\n%s", p.name, p.cmd.ProcessState, Tail(p.log, tailLines)))
		}
	}()
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
	cause := context.Cause(g.ctx)
	g.cancel(nil)
	for _, p := range slices.Backward(g.processes) {
		p.kill()
	}
	return cause
}

func (g *group) pids() []int {
	var pids []int
	for _, p := range g.processes {
		pids = append(pids, p.cmd.Process.Pid)
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
