//go:build !linux

package daemon

import (
	"os/exec"
	"syscall"
)

// Other systems have no such signal: a daemon outlives a test that is killed.
func diesWithParent() *syscall.SysProcAttr { return nil }

func startTied(cmd *exec.Cmd) error { return cmd.Start() }
