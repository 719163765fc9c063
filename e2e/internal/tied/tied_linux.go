package tied

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel kill the command when its parent ends.
func endWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}
