// Package tied starts processes that end with this one, however it ends. On systems other than Linux, which have no
// way to ask for that, they outlive a process that is killed.
package tied

import (
	"os/exec"
	"runtime"
	"sync"
)

// Start starts a command that ends with this process.
func Start(cmd *exec.Cmd) error {
	endWithParent(cmd)
	result := make(chan error)
	starter() <- func() { result <- cmd.Start() }
	return <-result
}

// starter is the thread that starts all commands. It lives as long as this process, while Go ends idle threads as it
// sees fit: to the kernel, a command's parent is the thread.
// https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
var starter = sync.OnceValue(func() chan<- func() {
	starts := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range starts {
			start()
		}
	}()
	return starts
})
