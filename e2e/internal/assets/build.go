package assets

import (
	"bytes"
	"context"
	"fmt"
	"go/version"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
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
	if len(sets[set]) == 0 {
		return Set{}, fmt.Errorf("no set of programs %q", set)
	}
	all := Set{paths: map[string]string{}}
	for _, c := range sets[set] {
		if c, err = c.chosen(checkout); err != nil {
			return Set{}, err
		}
		dir, err := c.ensure(ctx, filepath.Join(checkout, filepath.FromSlash(c.module)), progress)
		if err != nil {
			return Set{}, err
		}
		for _, p := range c.programs {
			all.paths[p.name] = filepath.Join(dir, p.name)
		}
		crds, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil {
			return Set{}, fmt.Errorf("find Karpenter's CRDs: %w", err)
		}
		all.CRDs = append(all.CRDs, crds...)
	}
	return all, nil
}

// ensure returns the directory that has the programs, and the CRDs if they belong to it.
func (c collection) ensure(ctx context.Context, module string, progress io.Writer) (dir string, err error) {
	flags := stripped
	if c.flags != nil {
		if flags, err = c.flags(module); err != nil {
			return "", err
		}
	}
	name, err := key(module, flags)
	if err != nil {
		return "", err
	}
	return Cached(ctx, c.name+"-"+name, func(dir string) error {
		fmt.Fprintf(progress, "build %s for the first time, which takes about %s on 2 cores\n", c.name, c.takes)
		for i, p := range c.programs {
			fmt.Fprintf(progress, "build %s (%d of %d)\n", p.name, i+1, len(c.programs))
			_, err := Go(ctx, module, "build", "-mod=readonly", "-trimpath", "-ldflags", flags, "-o", filepath.Join(dir, p.name), p.pkg)
			if err != nil {
				return fmt.Errorf("build %s: %w", p.name, err)
			}
		}
		for _, crds := range c.crds {
			if err := copyCRDs(ctx, module, crds, dir); err != nil {
				return err
			}
		}
		return nil
	})
}

func copyCRDs(ctx context.Context, module, crds, dir string) error {
	source, err := ModuleDir(ctx, module, karpenterModule)
	if err != nil {
		return err
	}
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(source, filepath.FromSlash(crds)))); err != nil {
		return fmt.Errorf("copy Karpenter's CRDs: %w", err)
	}
	return nil
}

// ModuleDir is where the files of another module are, in the version that the module in dir pins.
func ModuleDir(ctx context.Context, dir, path string) (string, error) {
	if _, err := Go(ctx, dir, "mod", "download", path); err != nil {
		return "", err
	}
	out, err := Go(ctx, dir, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", path)
	return strings.TrimSpace(out), err
}

// newerGo is the version of Go that the module in dir needs, such as go1.26.9, if this one is older.
func newerGo(dir string) string {
	content, _ := os.ReadFile(filepath.Join(dir, "go.mod")) // without one, the go command says so
	found := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(content)
	if found == nil || version.Compare("go"+string(found[1]), runtime.Version()) <= 0 {
		return ""
	}
	return "go" + string(found[1])
}

// Go runs the go command in the module in dir. GOFLAGS of the environment stay, as they may be
// what makes go work on this machine; a workspace does not, as it would replace the pins.
func Go(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "PWD="+dir)
	if newer := newerGo(dir); newer != "" {
		cmd.Env = append(cmd.Env, "GOTOOLCHAIN="+newer) // which the module proxy serves
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // lets go remove its work directory
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
