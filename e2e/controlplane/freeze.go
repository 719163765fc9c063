package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Freeze stops one of the components, such as kube-apiserver, until thaw is called: it answers
// nothing, and its connections stay open. The control plane can only be taken down once it is thawed.
func (c *Cluster) Freeze(component string) (thaw func(), err error) {
	for _, pid := range c.Processes {
		program, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
		if err != nil || filepath.Base(program) != component {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return nil, fmt.Errorf("freeze %s: %w", component, err)
		}
		return func() { _ = syscall.Kill(pid, syscall.SIGCONT) }, nil
	}
	return nil, fmt.Errorf("freeze %s: no process of the control plane is it", component)
}
