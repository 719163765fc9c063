package processes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	directoryPattern = "spot-handler-controlplane-*"
	lockName         = "lock"
)

// directory is where a control plane keeps its files.
type directory struct {
	path string
	lock *os.File // of a temporary one; nil: the user named it
}

// openDirectory takes the named directory, or makes a temporary one and marks it as in use for as long as this process
// lives.
func openDirectory(named string) (*directory, error) {
	if named != "" {
		path, err := filepath.Abs(named)
		if err == nil {
			err = os.MkdirAll(path, 0o755)
		}
		return &directory{path: path}, err
	}
	path, err := os.MkdirTemp("", directoryPattern)
	if err != nil {
		return nil, err
	}
	d := &directory{path: path}
	return d, d.takeLock()
}

// takeLock first makes the lock under another name: a visible lock that nobody holds
// means that its owner is dead.
func (d *directory) takeLock() (err error) {
	if d.lock, err = os.CreateTemp(d.path, lockName+"-*"); err != nil {
		return fmt.Errorf("make the lock of %s: %w", d.path, err)
	}
	err = syscall.Flock(int(d.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		err = os.Rename(d.lock.Name(), filepath.Join(d.path, lockName))
	}
	if err != nil {
		d.lock.Close()
		return fmt.Errorf("lock %s: %w", d.path, err)
	}
	return nil
}

// remove leaves only the logs of a directory that the user named, and nothing of a
// temporary one.
func (d *directory) remove() error {
	if d.lock != nil {
		defer d.lock.Close()
		return os.RemoveAll(d.path)
	}
	var errs []error
	for _, name := range []string{"etcd", credentialsName, stagesName, auditPolicyName} {
		errs = append(errs, os.RemoveAll(filepath.Join(d.path, name)))
	}
	return errors.Join(errs...)
}

// removeStale removes what killed processes have left. Live ones hold their lock. Those
// that have only just begun have no lock yet, so it goes by their age.
func removeStale(now time.Time) {
	paths, _ := filepath.Glob(filepath.Join(os.TempDir(), directoryPattern))
	for _, path := range paths {
		lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
		if err != nil {
			if info, err := os.Stat(path); err == nil && now.Sub(info.ModTime()) > time.Minute {
				_ = os.RemoveAll(path)
			}
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(path)
		}
		lock.Close()
	}
}
