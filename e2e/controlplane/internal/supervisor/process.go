package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
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
	exited chan struct{} // closed once the process is reaped and state is set
	state  string

	ending atomic.Bool // it is killed on purpose, and the others go on
}

// forker starts processes on one OS thread that lives until all of them have ended: the
// kernel sends a parent-death signal when the thread that forked ends, not when the
// process does, and the Go runtime ends idle threads as it sees fit.
type forker struct {
	requests chan func()
}

func newForker() *forker {
	f := &forker{requests: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for request := range f.requests {
			request()
		}
	}()
	return f
}

// close must be called only after every process has been reaped.
func (f *forker) close() { close(f.requests) }

func (f *forker) start(dir string, c command) (*process, error) {
	p := &process{name: c.name, log: filepath.Join(dir, c.name+".log"), exited: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", c.name, err)
	}
	defer log.Close()
	p.cmd = exec.Command(c.path, c.args...)
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), c.env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = ownGroupAndParentDeath()
	started := make(chan error)
	f.requests <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	go func() {
		// The error repeats what the state says.
		_ = p.cmd.Wait()
		p.state = p.cmd.ProcessState.String()
		close(p.exited)
	}()
	return p, nil
}

// kill ends the process at once: it holds nothing that needs an orderly end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// death describes a process that ended though nobody wanted it to.
func (p *process) death() error {
	return fmt.Errorf("%s ended unexpectedly: %s; the end of its log:\n%s", p.name, p.state, Tail(p.log, tailLines))
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
