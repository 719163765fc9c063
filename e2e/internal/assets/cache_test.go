package assets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestKeyFollowsPins(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module x\n\nrequire k8s.io/kubernetes v1.36.3\n")
	write("go.sum", "")
	seen := map[string]string{}
	check := func(what, flags string) {
		t.Helper()
		got, err := key(dir, flags)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := key(dir, flags); again != got {
			t.Errorf("%s: key is %s, then %s", what, got, again)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the same key as %s", what, other)
		}
		seen[got] = what
	}
	check("the first state", "-s")
	check("other link flags", "-w")
	write("go.sum", "k8s.io/kubernetes v1.36.3 h1:=\n")
	check("another go.sum", "-s")
	write("go.mod", "module x\n\nrequire k8s.io/kubernetes v1.36.4\n")
	check("another go.mod", "-s")
}

func TestLinkFlagsNameVersion(t *testing.T) {
	dir := t.TempDir()
	content := "module x\n\nrequire (\n\tk8s.io/klog v1.0.0 // indirect\n\tk8s.io/kubernetes v1.36.3 // indirect\n)\n"
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	flags, err := kubernetesFlags(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"gitVersion=v1.36.3", "gitMajor=1", "gitMinor=36"} {
		if !strings.Contains(flags, want) {
			t.Errorf("link flags %q lack %q", flags, want)
		}
	}
}

// What is there is not built again. A build that failed, or was killed, is not taken for a good one.
func TestCached(t *testing.T) {
	root := t.TempDir()
	t.Setenv(CacheVariable, root)
	if err := os.MkdirAll(filepath.Join(root, "set.part", "of a killed build"), 0o755); err != nil {
		t.Fatal(err)
	}
	builds := 0
	build := func(err error) func(string) error {
		return func(dir string) error {
			builds++
			return errors.Join(err, os.WriteFile(filepath.Join(dir, fmt.Sprint("program-", builds)), nil, 0o644))
		}
	}
	if _, err := Cached(t.Context(), "set", build(errors.New("no"))); err == nil {
		t.Error("no error of the build")
	}
	for range 2 {
		dir, err := Cached(t.Context(), "set", build(nil))
		if err != nil {
			t.Fatal(err)
		}
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		if len(files) != 1 || filepath.Base(files[0]) != "program-2" || builds != 2 {
			t.Errorf("%q after %d builds", files, builds)
		}
	}
}

func TestPruneRemovesWhatIsUnused(t *testing.T) {
	root := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{"recent": unusedFor / 2, "unused": 2 * unusedFor, "no lock": 2 * unusedFor} {
		path := filepath.Join(root, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
		if name != "no lock" {
			if err := os.WriteFile(path+".lock", nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	prune(root, now)
	var left []string
	entries, _ := os.ReadDir(root)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if got := strings.Join(left, ", "); got != "no lock, recent, recent.lock" {
		t.Errorf("left: %s", got)
	}
}

func TestLockIsExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	release, err := lockFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error)
	go func() {
		release, err := lockFile(t.Context(), path)
		if err == nil {
			release()
		}
		second <- err
	}()
	select {
	case <-second:
		t.Fatal("the lock was given twice")
	case <-time.After(300 * time.Millisecond): // longer than the pause between its attempts
	}
	release()
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// A version is chosen among those that have pins, by its minor number.
func TestChosenVersion(t *testing.T) {
	checkout := t.TempDir()
	for dir, required := range map[string]string{
		".":               "\tk8s.io/kubernetes v1.36.3 // indirect\n\tsigs.k8s.io/karpenter v1.14.1 // indirect\n",
		"kubernetes-1.33": "\tk8s.io/kubernetes v1.33.9\n",
		"karpenter-1.0":   "\tsigs.k8s.io/karpenter v1.0.8\n",
	} {
		dir = filepath.Join(checkout, filepath.FromSlash(pins), dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module x\n\nrequire (\n"+required+")\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ kubernetes, karpenter, want string }{
		{"", "", pins + " " + pins + " " + pins},
		{"1.36", "1.14", pins + " " + pins + " " + pins},
		{"1.33", "", pins + "/kubernetes-1.33 " + pins + " " + pins},
		{"1.33", "1.0", pins + "/kubernetes-1.33 " + pins + " " + pins + "/karpenter-1.0"},
		{"1.32", "", "there are pins only of 1.33, 1.36"},
		{"", "1.33", "there are pins only of 1.0, 1.14"},
	} {
		t.Setenv(KubernetesVariable, tt.kubernetes)
		t.Setenv(KarpenterVariable, tt.karpenter)
		var got []string
		for _, c := range sets[ControlPlane] {
			c, err := c.chosen(checkout)
			if err != nil {
				got = []string{err.Error()}
				break
			}
			got = append(got, filepath.ToSlash(c.module))
		}
		if !strings.Contains(strings.Join(got, " "), tt.want) {
			t.Errorf("%s, %s: %s, want %s", tt.kubernetes, tt.karpenter, got, tt.want)
		}
	}
}

// The pins of a version that needs a newer Go are built by it, wherever the go command would take only its own.
func TestNewerGo(t *testing.T) {
	own := strings.TrimPrefix(runtime.Version(), "go")
	for needed, want := range map[string]string{"1.20": "", own: "", "1.99.1": "go1.99.1"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module x\n\ngo "+needed+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := newerGo(dir); got != want {
			t.Errorf("a module of go %s is built by %q, want %q", needed, got, want)
		}
	}
}
