package manual

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"spot-handler/e2e/internal/tied"
)

// shell is what somebody types into who follows a page: variables and the directory stay from one
// command to the next.
type shell struct {
	state string // a file of assignments, which the next command reads
	env   []string
	heard func(said string) // while a command runs that is interrupted: what it has said so far; nil: nobody listens
}

// keeps writes what the next command finds. Bash has variables of its own, which nobody can set.
const keeps = `trap '
	manual_code=$?
	{
		declare -p | grep -v "^declare -[a-zA-Z]*r" |
			grep -vE "^declare -[a-zA-Z-]+ (BASH|FUNCNAME|DIRSTACK|GROUPS|PIPESTATUS|MANUAL_STATE|manual_code|_=)"
		printf "cd -- %q\n" "$PWD"
	} >"$MANUAL_STATE.next"
	mv "$MANUAL_STATE.next" "$MANUAL_STATE"
	exit $manual_code' EXIT`

const (
	// commandTimeout is longer than any command of the manual takes, on a busy machine.
	commandTimeout = 4 * time.Minute
	// promptly is how soon a command ends that is interrupted.
	promptly = 20 * time.Second
)

// newShell begins in a directory.
func newShell(dir, state string, env []string) (*shell, error) {
	s := &shell{state: state, env: append(env, "MANUAL_STATE="+state, "PWD="+dir)}
	return s, os.WriteFile(state, fmt.Appendf(nil, "cd -- '%s'\n", dir), 0o600)
}

// another is a new shell, in the directory of this one, and with its variables.
func (s *shell) another(state string) (*shell, error) {
	text, err := os.ReadFile(s.state)
	if err != nil {
		return nil, err
	}
	return &shell{state: state, env: append(s.env[:len(s.env):len(s.env)], "MANUAL_STATE="+state)}, os.WriteFile(state, text, 0o600)
}

// output is written while it is read.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// run runs a command to its end, and returns what it says and its exit code. One that does not end by
// itself is interrupted, as by Ctrl-C, once it has said what until matches. A variable that
// is not set is an error, as is a failure within a pipe.
func (s *shell) run(ctx context.Context, command string, until *regexp.Regexp) (said string, code int, err error) {
	cmd := exec.Command("bash", "-c", "set -euo pipefail\n. \"$MANUAL_STATE\"\n"+keeps+"\n"+command)
	cmd.Env = s.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // for what it has started and not waited for
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	process, err := tied.Run(cmd)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = syscall.Kill(-process.Pid(), syscall.SIGKILL) }()
	timeout := time.After(commandTimeout)
	for until != nil && !until.MatchString(out.String()) {
		if s.heard != nil {
			s.heard(out.String())
		}
		select {
		case <-process.Done():
			return out.String(), process.ExitCode(), fmt.Errorf("it ended, with code %d, before it said %q", process.ExitCode(), until)
		case <-timeout:
			return out.String(), 0, fmt.Errorf("it did not say %q within %s", until, commandTimeout)
		case <-ctx.Done():
			return out.String(), 0, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	if until != nil {
		_ = syscall.Kill(-process.Pid(), syscall.SIGINT)
		timeout = time.After(promptly)
	}
	select {
	case <-process.Done():
		return out.String(), process.ExitCode(), nil
	case <-timeout:
		return out.String(), 0, errors.New("it did not end")
	case <-ctx.Done():
		return out.String(), 0, ctx.Err()
	}
}

// A shell keeps what a command sets, sees what fails, and ends what does not end.
func TestShell(t *testing.T) {
	dir := t.TempDir()
	s, err := newShell(dir, filepath.Join(dir, "state"), append(os.Environ(), "LC_ALL=C"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		command, until string
		says           string
		code           int
		fails          bool
	}{
		{command: `a='it'\''s "x"
y'; b=(1 "2 3"); export c=d; mkdir -p sub && cd sub`},
		{command: `printf '%s|%s|%s|%s|%s' "$a" "${#b[@]}" "${b[1]}" "$(sh -c 'echo $c')" "${PWD##*/}"`, says: "it's \"x\"\ny|2|2 3|d|sub"},
		{command: `echo "$unset"`, says: "unset: unbound variable", code: 1},
		{command: `false | cat`, code: 1},
		{command: `false
echo on`, code: 1},
		{command: `echo begun; while :; do sleep 0.1; done`, until: `begun`, says: "begun", code: -1},
		{command: `echo begun`, until: `ended`, says: "begun", fails: true},
		{command: `echo "$a" | head -1`, says: "it's \"x\"\n"},
	} {
		var until *regexp.Regexp
		if tt.until != "" {
			until = regexp.MustCompile(tt.until)
		}
		said, code, err := s.run(t.Context(), tt.command, until)
		if !strings.Contains(said, tt.says) || tt.says == "" && said != "" || code != tt.code || (err != nil) != tt.fails {
			t.Errorf("%q says %q, with code %d and error %v", tt.command, said, code, err)
		}
	}
	second, err := s.another(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	if other, _, err := second.run(t.Context(), `a=2; echo "$c"`, nil); other != "d\n" || err != nil {
		t.Errorf("another shell has c=%q: %v", other, err)
	}
	if said, _, err := s.run(t.Context(), `echo "$a" | tail -1`, nil); said != "y\n" || err != nil {
		t.Errorf("after another shell a ends in %q: %v", said, err)
	}
}
