package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const events = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"    a_test.go:1: nobody asked\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"    a_test.go:1: waited 1m0.5s for its turn\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"--- PASS: TestGood (62.00s)\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":62}
{"Action":"start","Package":"m/b"}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"m/b","Test":"TestBad/one","Output":"=== RUN   TestBad/one\n"}
{"Action":"output","Package":"m/b","Test":"TestBad/one","Output":"    b_test.go:2: wrong\n"}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t1.601s\n"}
{"Action":"pass","Package":"m/a","Elapsed":1.601}
{"Action":"output","Package":"m/b","Test":"TestBad/one","Output":"    --- FAIL: TestBad/one (0.50s)\n"}
{"Action":"fail","Package":"m/b","Test":"TestBad/one","Elapsed":0.5}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"--- FAIL: TestBad (2.00s)\n"}
{"Action":"fail","Package":"m/b","Test":"TestBad","Elapsed":2}
{"Action":"output","Package":"m/b","Test":"TestAbsent","Output":"    b_test.go:9: no tool\n"}
{"Action":"skip","Package":"m/b","Test":"TestAbsent","Elapsed":0}
{"Action":"output","Package":"m/b","Test":"TestHangs","Output":"panic: test timed out\n"}
{"Action":"output","Package":"m/b","Output":"FAIL\tm/b\t3.000s\n"}
{"Action":"fail","Package":"m/b","Elapsed":3}
{"ImportPath":"m/c","Action":"build-output","Output":"c.go:1:1: syntax error\n"}
{"Action":"fail","Package":"m/d","Elapsed":0}
`

// What go test itself would have said, then the times, the slowest first.
func TestReport(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	r.table(6 * time.Second)
	want := `ok  	m/a	1.601s
    b_test.go:2: wrong
    --- FAIL: TestBad/one (0.50s)
--- FAIL: TestBad (2.00s)
FAIL	m/b	3.000s
panic: test timed out
c.go:1:1: syntax error

Where the time went: 6s for 3 tests in 3 packages

by package
     3.0s  m/b  fail
     1.6s  m/a

slowest tests
     2.0s  m/b.TestBad  fail
     1.5s  m/a.TestGood
     0.0s  m/b.TestAbsent  skip

skipped
  m/b.TestAbsent: b_test.go:9: no tool

failed
  m/b.TestBad
    b_test.go:2: wrong
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A run is recorded in place of the one before it with the same minor versions, beside those with others.
// With changes that no commit has, nothing is recorded, nor run.
func TestRecord(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, one := range []ran{
		{Kubernetes: "v1.35.4", Karpenter: "v1.14.1", Commit: "1111111", Date: "2026-11-22", Cores: 2, Tests: 7},
		{Kubernetes: "v1.36.2", Karpenter: "v1.14.1", Commit: "2222222", Date: "2026-11-22", Cores: 2, Tests: 8},
	} {
		if err := one.keep("ran.yaml"); err != nil {
			t.Fatal(err)
		}
	}
	r := newReport(&strings.Builder{})
	if err := r.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	r.worked("go test ./...", time.Second, errors.New("exit status 1"))
	last := ran{Kubernetes: "v1.36.3", Karpenter: "v1.14.1", Commit: "3333333", Cores: 4}
	r.count(&last)
	last.Date = "2026-11-23"
	if err := last.keep("ran.yaml"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("ran.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`- commit: "1111111"
  cores: 2
  date: "2026-11-22"
  karpenter: v1.14.1
  kubernetes: v1.35.4
  tests: 7
- commit: "3333333"
  cores: 4
  date: "2026-11-23"
  failed:
  - m/b.TestBad
  - m/d
  karpenter: v1.14.1
  kubernetes: v1.36.3
  skipped:
  - 'm/b.TestAbsent: b_test.go:9: no tool'
  tests: 3
`, string(text)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	var out strings.Builder
	if code := run(t.Context(), []string{"-record", "ran.yaml", "go test ."}, &out, &out); code != 2 || !strings.Contains(out.String(), "find the commit that runs") {
		t.Errorf("without a repository: exit code %d, want 2\n%s", code, out.String())
	}
	for _, args := range [][]string{{"init", "-q"}, {"-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "--allow-empty", "-m", "x"}} {
		if said, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, said)
		}
	}
	out.Reset()
	if code := run(t.Context(), []string{"-record", "ran.yaml", "go test ."}, &out, &out); code != 2 || !strings.Contains(out.String(), "not committed (<nil>):\n?? ran.yaml") {
		t.Errorf("with changes: exit code %d, want 2\n%s", code, out.String())
	}
}
