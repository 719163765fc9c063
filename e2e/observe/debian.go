package observe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"spot-handler/e2e/internal/lacking"
)

// Tools are the programs that observe runs.
type Tools struct {
	Prometheus, Promtool, Alertmanager string // their paths

	root string // where Debian's packages are unpacked; empty if they are installed
}

// downloadTimeout is several times what the 30 MB take.
const downloadTimeout = 3 * time.Minute

// Find returns the programs: those on the PATH, else those in the cache, else those in
// Debian's archive, which it unpacks into the cache. Several processes may call it at the
// same time.
func Find(ctx context.Context) (Tools, error) {
	if tools, ok := look(exec.LookPath); ok {
		return tools, nil
	}
	dir, err := cacheDir()
	if err != nil {
		return Tools{}, err
	}
	inDir := func(name string) (string, error) { return exec.LookPath(filepath.Join(dir, "usr", "bin", name)) }
	if tools, ok := look(inDir); ok {
		tools.root = dir
		return tools, nil
	}
	if err := unpack(ctx, dir); err != nil {
		return Tools{}, fmt.Errorf("get Prometheus and Alertmanager from Debian: %w", err)
	}
	if tools, ok := look(inDir); ok {
		tools.root = dir
		return tools, nil
	}
	return Tools{}, fmt.Errorf("get Prometheus and Alertmanager from Debian: its packages do not hold them")
}

// ForTest returns the programs. If they are not available it skips the test, and says
// what to do about it; in CI it fails.
func ForTest(t testing.TB) Tools {
	t.Helper()
	tools, err := Find(t.Context())
	if err != nil {
		lacking.End(t, "%v\nOn Debian, install the packages prometheus and prometheus-alertmanager; elsewhere, put prometheus, promtool and alertmanager on the PATH.", err)
	}
	return tools
}

// look finds all programs in one place. Debian calls one of them by another name.
func look(path func(name string) (string, error)) (Tools, bool) {
	alertmanager, err := path("prometheus-alertmanager")
	if err != nil {
		alertmanager, err = path("alertmanager")
	}
	prometheus, err2 := path("prometheus")
	promtool, err3 := path("promtool")
	return Tools{Prometheus: prometheus, Promtool: promtool, Alertmanager: alertmanager}, errors.Join(err, err2, err3) == nil
}

// alertmanager is the command that runs Alertmanager. Debian's reads its templates from
// /usr/share, and no option changes that: if the package is only unpacked, it gets a
// /usr/share of its own.
func (t Tools) alertmanager(args []string) []string {
	if t.root == "" {
		return append([]string{t.Alertmanager}, args...)
	}
	// Entering the namespace resets the parent-death signal, so set it again.
	const inOwnShare = `mount --bind "$0" /usr/share && exec setpriv --pdeathsig KILL "$@"`
	return append([]string{"unshare", "--mount", "--map-root-user", "sh", "-c", inOwnShare, filepath.Join(t.root, "usr", "share"), t.Alertmanager}, args...)
}

// cacheDir is where the packages are unpacked, next to the control plane's binaries.
func cacheDir() (string, error) {
	base := os.Getenv("SPOT_HANDLER_E2E_CACHE")
	if base == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find cache directory: %w", err)
		}
		base = filepath.Join(user, "spot-handler")
	}
	return filepath.Join(base, "debian-prometheus"), nil
}

// unpack downloads the two packages and unpacks them. It does not install them: all that
// they need is the C library, and their services must not start.
func unpack(ctx context.Context, dir string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	// Next to its final place and then moved, so an interrupted download is never taken
	// for a good one.
	work, err := os.MkdirTemp(filepath.Dir(dir), "debian-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	run := func(name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = work
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", name, err, out)
		}
		return nil
	}
	download := func() error { return run("apt-get", "download", "prometheus", "prometheus-alertmanager") }
	if err := download(); err != nil {
		if os.Geteuid() != 0 { // only root can update the lists of packages, which a new machine lacks
			return err
		}
		if err := errors.Join(run("apt-get", "update"), download()); err != nil {
			return err
		}
	}
	packages, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil {
		return err
	}
	root := filepath.Join(work, "root")
	for _, file := range packages {
		if err := run("dpkg-deb", "--extract", file, root); err != nil {
			return err
		}
	}
	if err := os.Rename(root, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr == nil {
			return nil // another process got there first
		}
		return err
	}
	return nil
}
