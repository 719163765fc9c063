//go:build !linux

package supervisor

import "syscall"

// ownGroupAndParentDeath keeps a Ctrl-C at the terminal away from the components, so the
// supervisor ends them. Only Linux can tell a child about its parent's death.
func ownGroupAndParentDeath() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
