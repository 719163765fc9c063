package daemon

import (
	"os/exec"
	"runtime"
	"syscall"
)

func diesWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// startTied starts the command from a thread that lives as long as this process: to the
// kernel, the thread is the parent.
// https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
func startTied(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		started <- cmd.Start()
		select {}
	}()
	return <-started
}
