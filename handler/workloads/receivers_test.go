package workloads

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"spot-handler/drain/plan"
)

// The receivers of the manual receive a notice, and their answers are understood.
func TestReceiversOfTheManual(t *testing.T) {
	example := func(language string) string { return example(t, "workloads.md", "## Receivers", language) }
	t.Run("python", func(t *testing.T) {
		t.Parallel()
		address := freeAddress(t)
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		dir, program := t.TempDir(), strings.Replace(example("python"), `"", 8080`, `"127.0.0.1", `+port, 1)
		if err := os.WriteFile(filepath.Join(dir, "receiver.py"), []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
		out := start(t, dir, []string{"python3", "receiver.py"})
		if when, result := tell(t, address); when != plan.WhenHold || result != resultAnswered {
			t.Errorf("%q, %s", when, result)
		}
		if line := <-out; !strings.Contains(line, typeNotice) {
			t.Errorf("it says %q", line)
		}
	})
	t.Run("sh", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		file := filepath.Join(dir, "evict-by")
		if err := os.WriteFile(file, nil, 0o600); err != nil { // as it is before there is such an annotation
			t.Fatal(err)
		}
		out := start(t, dir, []string{"sh", "-c", strings.ReplaceAll(example("sh"), "/etc/spot", dir)})
		if err := os.WriteFile(file, []byte("2026-01-01T12:01:20Z"), 0o600); err != nil {
			t.Fatal(err)
		}
		if line := <-out; line != "out by 2026-01-01T12:01:20Z" {
			t.Errorf("it says %q", line)
		}
	})
}

// example is the first block of code in that language below the heading of a page of the manual.
func example(t *testing.T, page, heading, language string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut("\n"+string(text), "\n"+heading+"\n")
	section, _, _ = strings.Cut(section, "\n"+heading[:strings.Index(heading, " ")]+" ")
	found := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindStringSubmatch(section)
	if found == nil {
		t.Fatalf("%s has no example in %s below %q", page, language, heading)
	}
	return found[1]
}

// tell gives a notice to a receiver as soon as it listens, and returns what that answers.
func tell(t *testing.T, address string) (plan.When, string) {
	t.Helper()
	notifier, _ := newNotifier(t, nil)
	body, err := json.Marshal(newEvent(time.Now(), interrupted(time.Now().Add(2*time.Minute)), typeNotice, asks(podOf("a"), time.Now().Add(time.Minute))))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		got := notifier.attempt(t.Context(), &url.URL{Scheme: "http", Host: address, Path: "/"}, body)
		if got.result == resultFailed && time.Now().Before(deadline) {
			continue
		}
		if got.err != nil {
			t.Error(got.err)
		}
		return got.when, got.result
	}
}

// start runs a program to the end of the test, and returns what it says, by line. The environment
// is the test's own with changes.
func start(t *testing.T, dir string, command []string, env ...string) <-chan string {
	t.Helper()
	switch _, err := exec.LookPath(command[0]); {
	case err == nil, strings.HasPrefix(command[0], "."):
	case os.Getenv("CI") != "": // what CI does not run, nobody does
		t.Fatalf("the manual's examples need %s: %v", command[0], err)
	default:
		t.Skipf("an example of the manual is not run: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines, ended := make(chan string, 10), make(chan struct{})
	t.Cleanup(func() { <-ended }) // or the last test ends before it is killed, and leaves it behind
	go func() {
		defer close(ended)
		defer close(lines)
		for scanner := bufio.NewScanner(said); scanner.Scan(); {
			select {
			case lines <- scanner.Text():
			default:
			}
		}
		_ = cmd.Wait()
	}()
	return lines
}

// freeAddress has a port below those that connections of other programs are given.
func freeAddress(t *testing.T) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(10000)))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().String()
	}
}
