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

	// unusedFor is how long a directory may lie unused before it is removed: a set of
	// programs takes half a gigabyte, and a branch with other pins may be returned to
	// within weeks.
	unusedFor = 30 * 24 * time.Hour
)

// CacheRoot is the directory of the cache.
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

// Cached returns the directory of that name in the cache, which build fills if it is not there. One process builds at
// a time, and the others wait. A build that is interrupted is made again.
func Cached(ctx context.Context, name string, build func(dir string) error) (string, error) {
	root, err := CacheRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, name)
	if use(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	release, err := lockFile(ctx, dir+".lock")
	if err != nil {
		return "", err
	}
	defer release()
	if use(dir) { // another process has built it
		return dir, nil
	}
	work := dir + ".part"
	if err := errors.Join(os.RemoveAll(work), os.Mkdir(work, 0o755)); err != nil {
		return "", fmt.Errorf("make a build directory: %w", err)
	}
	defer os.RemoveAll(work)
	if err := build(work); err != nil {
		return "", err
	}
	if err := os.Rename(work, dir); err != nil {
		return "", fmt.Errorf("put %s into the cache: %w", name, err)
	}
	prune(root, time.Now())
	return dir, nil
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

// use marks a directory as used now, if it is there.
func use(dir string) bool {
	now := time.Now()
	return os.Chtimes(dir, now, now) == nil
}

// prune removes what has not been used for long. A failure is not worth an error: the worst outcome is a full disk later.
func prune(root string, now time.Time) {
	locks, _ := filepath.Glob(filepath.Join(root, "*.lock"))
	for _, lock := range locks {
		dir := strings.TrimSuffix(lock, ".lock")
		if info, err := os.Stat(dir); err == nil && now.Sub(info.ModTime()) > unusedFor {
			_ = os.RemoveAll(dir)
			_ = os.Remove(lock)
		}
	}
}
