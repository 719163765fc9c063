package assets

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// CacheVariable overrides where the cache is.
	CacheVariable = "SPOT_HANDLER_E2E_CACHE"

	// unusedFor is how long a key may lie unused before it is removed: a set of
	// programs takes half a gigabyte, and a branch with other pins may be returned to
	// within weeks.
	unusedFor = 30 * 24 * time.Hour
)

// CacheRoot is the directory that holds all keys.
func CacheRoot() (string, error) {
	if dir := os.Getenv(CacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory (set %s): %w", CacheVariable, err)
	}
	return filepath.Join(dir, "spot-handler"), nil
}

// key names the set of programs that the module in dir describes.
func key(dir, flags string) (string, error) {
	hash := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("read the pins: %w", err)
		}
		fmt.Fprintf(hash, "%s %d\n%s", name, len(content), content)
	}
	fmt.Fprintf(hash, "%s %s/%s\n%s", runtime.Version(), runtime.GOOS, runtime.GOARCH, flags)
	return fmt.Sprintf("%x", hash.Sum(nil)[:8]), nil
}

// lockFile waits until this process alone holds the lock at path. The kernel
// drops the lock with the process, so a killed builder blocks nobody.
func lockFile(ctx context.Context, path string) (release func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the build lock: %w", err)
	}
	for {
		// Not the blocking form: it could not be canceled.
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			file.Close()
			return nil, fmt.Errorf("take the build lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("wait for another process that builds: %w", context.Cause(ctx))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// touch marks a key as used, and prune removes those that have not been for long.
// Neither is worth an error: the worst outcome is a build or a full disk later.
func touch(dir string) {
	now := time.Now()
	_ = os.Chtimes(dir, now, now)
}

func prune(root, prefix, current string, now time.Time) {
	entries, _ := os.ReadDir(root)
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !entry.IsDir() || !strings.HasPrefix(entry.Name(), prefix) {
			continue
		}
		if entry.Name() != current && now.Sub(info.ModTime()) > unusedFor {
			_ = os.RemoveAll(filepath.Join(root, entry.Name()))
			_ = os.Remove(filepath.Join(root, entry.Name()+".lock"))
		}
	}
}
