// Package foreign runs what this project did not write: emulators of AWS, and aws-node-termination-handler beside
// which ours must not run. Our emulators are held to a contract by tests; the same tests, run against somebody else's,
// show that the contract is AWS's and not what we take for it.
//
// What such an emulator is and where it comes from is each test's own matter: here it is a program that serves on a
// loopback port, says where in the first line of its standard output, and ends with its standard input.
package foreign

import (
	"bufio"
	"os"
	"os/exec"
	"testing"
	"time"
)

// startTimeout is several times what the slowest of them takes to import what it needs, on a busy machine.
const startTimeout = 2 * time.Minute

// Start runs the command until the test ends, also if that is by our death, and returns the first line that it says.
func Start(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // its end ends the process
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start foreign emulator: %v", err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	slow := time.AfterFunc(startTimeout, func() { _ = cmd.Process.Kill() })
	defer slow.Stop()
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() {
		t.Fatalf("foreign emulator said nothing: %v", lines.Err())
	}
	return lines.Text()
}
