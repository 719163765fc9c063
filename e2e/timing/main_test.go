package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A command that fails is not the last: the others run, and the outcome is a failure.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, content := range map[string]string{
		"go.mod":           "module m\n\ngo 1.26\n",
		"good/a_test.go":   "package a\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) {}\n",
		"bad/a_test.go":    "package a\n\nimport \"testing\"\n\nfunc TestBad(t *testing.T) { t.Error(\"wrong\") }\n",
		"beside/a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestBeside(t *testing.T) {}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"-beside", "go test ./beside", "go test ./good"}, 0, []string{"ok  \tm/good", "ok  \tm/beside", "2 tests in 2 packages", "s  go test ./beside\n"}},
		{[]string{"go test ./bad", "go test ./good"}, 1, []string{"--- FAIL: TestBad", "wrong", "ok  \tm/good"}},
		{[]string{"-beside", "go test ./bad", "go test ./good"}, 1, []string{"FAIL\tm/bad"}},
		{[]string{"-after", "go test ./beside", "go test ./bad"}, 1, []string{"FAIL\tm/bad", "ok  \tm/beside"}},
		{[]string{"-after", "go test ./bad", "-after", "go test ./beside", "go test ./good"}, 1, []string{"ok  \tm/good", "ok  \tm/beside", "FAIL\tm/bad"}},
		{[]string{"go vet ./good"}, 1, []string{"it is not a go test"}},
		{nil, 2, []string{"no command"}},
	} {
		var out strings.Builder
		if code := run(t.Context(), tt.args, &out, &out); code != tt.code {
			t.Errorf("%q: exit code %d, want %d", tt.args, code, tt.code)
		}
		for _, what := range tt.says {
			if !strings.Contains(out.String(), what) {
				t.Errorf("%q: no %q in\n%s", tt.args, what, out.String())
			}
		}
	}
}

// What is interrupted ends, with the tests that run and what they have started: each holds the lock of
// a file for as long as it lives. Nothing is recorded.
func TestInterrupted(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, content := range map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"a_test.go": `package m

import ("os"; "os/exec"; "syscall"; "testing")

func TestHangs(t *testing.T) {
	lock, err := os.Create("lock")
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	sleep := exec.Command("sleep", "3600")
	sleep.ExtraFiles = []*os.File{lock}
	if err != nil || sleep.Start() != nil || os.WriteFile("began", nil, 0o644) != nil {
		t.Fatal("it cannot begin")
	}
	sleep.Wait()
}
`,
	} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, interrupt := context.WithCancel(t.Context())
	var out strings.Builder
	code := make(chan int)
	go func() { code <- run(ctx, []string{"-after", "go test .", "go test ."}, &out, &out) }()
	for _, err := os.Stat("began"); err != nil; _, err = os.Stat("began") {
		select {
		case <-code:
			t.Fatalf("it has ended:\n%s", out.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
	interrupt()
	if code := <-code; code != 1 {
		t.Errorf("exit code %d, want 1\n%s", code, out.String())
	}
	lock, err := os.Open("lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	for began := time.Now(); syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil; time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("the test, or what it has started, runs on")
		}
	}
}
