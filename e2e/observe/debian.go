package observe

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"spot-handler/e2e/internal/assets"
	"spot-handler/e2e/internal/lacking"
)

// Programs are the paths of what observe runs.
type Programs struct {
	Prometheus, Promtool string
}

// downloadTimeout is several times what the 30 MB take.
const downloadTimeout = 3 * time.Minute

// ForTest returns the programs. If they are not available it skips the test, and says
// what to do about it; in CI it fails.
func ForTest(t testing.TB) Programs {
	t.Helper()
	programs, err := find(t.Context())
	if err != nil {
		lacking.End(t, "%v\nOn Debian, install the package prometheus; elsewhere, put prometheus and promtool on the PATH.", err)
	}
	return programs
}

// find returns the programs on the PATH, else those of Debian's package, which it keeps in the cache.
func find(ctx context.Context) (Programs, error) {
	prometheus, err := exec.LookPath("prometheus")
	if err == nil {
		if promtool, err := exec.LookPath("promtool"); err == nil {
			return Programs{Prometheus: prometheus, Promtool: promtool}, nil
		}
	}
	dir, err := assets.Cached(ctx, "debian-prometheus", func(dir string) error { return unpack(ctx, dir) })
	if err != nil {
		return Programs{}, fmt.Errorf("get Prometheus from Debian: %w", err)
	}
	bin := filepath.Join(dir, "usr", "bin")
	return Programs{Prometheus: filepath.Join(bin, "prometheus"), Promtool: filepath.Join(bin, "promtool")}, nil
}

// unpack downloads the package into a directory and unpacks it there. It does not install it: all that the programs
// need is the C library, and their service must not start. A new machine has no lists of packages, and only root can
// update them.
func unpack(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-ec", `
		apt-get download prometheus || { apt-get update; apt-get download prometheus; }
		dpkg-deb --extract prometheus_*.deb .
		rm prometheus_*.deb`)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}
