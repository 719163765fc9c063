package assets

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	scratchPattern = ".building-*"

	// progressEvery is short enough that nobody takes a build for a hang.
	progressEvery = 15 * time.Second
)

// Set is a complete set of programs.
type Set struct {
	paths map[string]string
	// CRDs are the files of Karpenter's custom resource definitions, where they belong to
	// the set.
	CRDs []string
}

// Path is where the named program is.
func (s Set) Path(name string) string { return s.paths[name] }

// Ensure returns the programs of a set, of the versions that KubernetesVariable and
// KarpenterVariable choose, and builds those that are not in the cache. It says on progress what
// it builds, and nothing when everything is there. The first build takes minutes.
func Ensure(ctx context.Context, set string, progress io.Writer) (Set, error) {
	checkout, err := Checkout()
	if err != nil {
		return Set{}, err
	}
	parts := slices.Clone(sets[set])
	if len(parts) == 0 {
		return Set{}, fmt.Errorf("no set of programs %q", set)
	}
	for i := range parts {
		if parts[i], err = parts[i].chosen(checkout); err != nil {
			return Set{}, err
		}
	}
	all := Set{paths: map[string]string{}}
	for _, part := range parts {
		set, err := part.ensure(ctx, progress)
		if err != nil {
			return Set{}, err
		}
		maps.Copy(all.paths, set.paths)
		all.CRDs = append(all.CRDs, set.CRDs...)
	}
	return all, nil
}

func (c collection) ensure(ctx context.Context, progress io.Writer) (Set, error) {
	checkout, err := Checkout()
	if err != nil {
		return Set{}, err
	}
	module := filepath.Join(checkout, filepath.FromSlash(c.module))
	flags := stripped
	if c.flags != nil {
		if flags, err = c.flags(module); err != nil {
			return Set{}, err
		}
	}
	name, err := key(module, flags)
	if err != nil {
		return Set{}, err
	}
	root, err := CacheRoot()
	if err != nil {
		return Set{}, err
	}
	name = c.prefix + name
	b := builder{collection: c, module: module, dir: filepath.Join(root, name), flags: flags, progress: progress}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return Set{}, fmt.Errorf("make the cache directory: %w", err)
	}
	touch(b.dir)
	if !b.complete() {
		release, err := lockFile(ctx, b.dir+".lock")
		if err != nil {
			return Set{}, err
		}
		defer release()
		if err := b.build(ctx); err != nil {
			return Set{}, err
		}
		prune(root, c.prefix, name, time.Now())
	}
	return b.set()
}

type builder struct {
	collection
	module, dir, flags string
	progress           io.Writer
}

func (b builder) path(p program) string { return filepath.Join(b.dir, p.name) }

func (b builder) crdDir() string { return filepath.Join(b.dir, "crds") }

func (b builder) missing() []program {
	return slices.DeleteFunc(slices.Clone(b.programs), func(p program) bool { return exists(b.path(p)) })
}

func (b builder) complete() bool {
	return len(b.missing()) == 0 && (!b.crds || exists(b.crdDir()))
}

func (b builder) set() (Set, error) {
	set := Set{paths: map[string]string{}}
	for _, p := range b.programs {
		set.paths[p.name] = b.path(p)
	}
	if !b.crds {
		return set, nil
	}
	crds, err := filepath.Glob(filepath.Join(b.crdDir(), "*.yaml"))
	if err != nil || len(crds) == 0 {
		return Set{}, fmt.Errorf("find Karpenter's CRDs in %s: %w", b.crdDir(), err)
	}
	set.CRDs = crds
	return set, nil
}

// build is called with the lock held; what another process has built meanwhile
// is not built again.
func (b builder) build(ctx context.Context) error {
	interrupted, _ := filepath.Glob(filepath.Join(b.dir, scratchPattern))
	for _, dir := range interrupted {
		_ = os.RemoveAll(dir) // left by a build that was killed: nobody else builds now
	}
	missing := b.missing()
	for i, p := range missing {
		notice := fmt.Sprintf("building %s (%d of %d)", p.name, i+1, len(missing))
		if i == 0 && len(missing) == len(b.programs) {
			notice += ", the first build takes about " + b.takes + " on 2 cores"
		}
		if err := b.compile(ctx, p, notice); err != nil {
			return err
		}
	}
	if b.crds && !exists(b.crdDir()) {
		return b.copyCRDs(ctx)
	}
	return nil
}

func (b builder) compile(ctx context.Context, p program, notice string) error {
	scratch, err := os.MkdirTemp(b.dir, scratchPattern)
	if err != nil {
		return fmt.Errorf("make a build directory: %w", err)
	}
	defer os.RemoveAll(scratch)
	started := time.Now()
	fmt.Fprintln(b.progress, notice)
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				fmt.Fprintf(b.progress, "building %s, %s so far\n", p.name, time.Since(started).Round(time.Second))
			}
		}
	}()
	out := filepath.Join(scratch, p.name)
	_, err = b.goTool(ctx, "build", "-mod=readonly", "-trimpath", "-ldflags", b.flags, "-o", out, p.pkg)
	close(done)
	<-stopped
	if err != nil {
		return fmt.Errorf("build %s: %w", p.name, err)
	}
	if err := os.Rename(out, filepath.Join(b.dir, p.name)); err != nil {
		return fmt.Errorf("put %s into the cache: %w", p.name, err)
	}
	return nil
}

func (b builder) copyCRDs(ctx context.Context) error {
	out, err := b.goTool(ctx, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", karpenterModule)
	if err != nil {
		return fmt.Errorf("find the module of Karpenter: %w", err)
	}
	scratch, err := os.MkdirTemp(b.dir, scratchPattern)
	if err != nil {
		return fmt.Errorf("make a build directory: %w", err)
	}
	defer os.RemoveAll(scratch)
	source := strings.TrimSpace(out)
	for _, dir := range crdDirectories {
		if err := os.CopyFS(scratch, os.DirFS(filepath.Join(source, filepath.FromSlash(dir)))); err != nil {
			return fmt.Errorf("copy Karpenter's CRDs in %s of its module: %w", dir, err)
		}
	}
	if err := os.Chmod(scratch, 0o755); err != nil {
		return fmt.Errorf("open the CRDs to other users: %w", err)
	}
	if err := os.Rename(scratch, b.crdDir()); err != nil {
		return fmt.Errorf("put Karpenter's CRDs into the cache: %w", err)
	}
	return nil
}

// goTool runs the go command in the module of the pins. GOFLAGS of the
// environment stay, as they may be what makes go work on this machine; a
// workspace does not, as it would replace the pins.
func (b builder) goTool(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "PWD="+b.module)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // lets go remove its work directory
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, lastBytes(stderr.Bytes(), 4096))
	}
	return stdout.String(), nil
}

func lastBytes(text []byte, n int) []byte {
	return bytes.TrimSpace(text[max(0, len(text)-n):])
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
