package sqsemu_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"spot-handler/e2e/foreign"
	"spot-handler/e2e/internal/lacking"
)

// foreignDeviations are the cases in which the foreign emulator, fauxqs 2.4.1 of npm, differs from what AWS
// documents.
var foreignDeviations = map[string]string{
	"characters beyond the basic plane arrive":                    "refuses them, though AWS takes #x10000 to #x10FFFF",
	"a bad receipt handle is ReceiptHandleIsInvalid":              "deletes of unknown handles succeed, changes are MessageNotInflight",
	"a batch deletes the good and reports the bad":                "deletes of unknown handles succeed",
	"visibility of a message not in flight is MessageNotInflight": "calls the entry's handle invalid",
}

// installTimeout is several times what the install takes; without a registry npm would keep trying for longer than
// a test run.
const installTimeout = 2 * time.Minute

// startForeign runs an SQS emulator that this project did not write and returns its endpoint. It needs node and npm
// and, for its first run, a registry to install from.
func startForeign(t *testing.T) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		lacking.End(t, "no foreign SQS emulator to compare with: %v", err)
	}
	home, err := installForeign()
	if err != nil {
		lacking.End(t, "no foreign SQS emulator to compare with: %v", err)
	}
	return foreign.Start(t, exec.Command(node, filepath.Join("testdata", "foreign", "serve.mjs"), home))
}

// installForeign installs what the lock file names, once per version, in the user's cache.
func installForeign() (dir string, err error) {
	lock, err := os.ReadFile(filepath.Join("testdata", "foreign", "package-lock.json"))
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	parent := filepath.Join(cache, "spot-handler", "foreign-sqs")
	sum := sha256.Sum256(lock)
	dir = filepath.Join(parent, hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}

	// Installed next to its final place and then moved, so an interrupted install is never taken for a good one.
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(parent, "install-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	manifest, err := os.ReadFile(filepath.Join("testdata", "foreign", "package.json"))
	if err != nil {
		return "", err
	}
	for name, content := range map[string][]byte{"package.json": manifest, "package-lock.json": lock} {
		if err := os.WriteFile(filepath.Join(work, name), content, 0o644); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = work
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	if err := os.Rename(work, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr == nil {
			return dir, nil // another test process got there first
		}
		return "", err
	}
	return dir, nil
}
