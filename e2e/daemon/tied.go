package daemon

import "os/exec"

// StartTied starts a command that dies with this process, if the system supports that.
func StartTied(cmd *exec.Cmd) error {
	cmd.SysProcAttr = diesWithParent()
	return startTied(cmd)
}
