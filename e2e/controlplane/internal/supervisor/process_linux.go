package supervisor

import "syscall"

// ownGroupAndParentDeath keeps a Ctrl-C at the terminal away from the components, so the
// supervisor ends them, and tells the kernel to end them if it cannot.
func ownGroupAndParentDeath() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
