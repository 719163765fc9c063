// Command timing runs `go test` and says in the end where the time went.
//
//	go run ./e2e/timing [-beside COMMAND]... [-after COMMAND]... COMMAND...
//
// Each COMMAND is one line for the shell's words, without quoting, such as `go test
// -count=1 ./drain`. They run one after the other, and those of -beside meanwhile, one
// after the other too. Those of -after begin once the former have ended, all at the same time,
// whether or not there is something beside them. Each must be a `go test`: -json is added to it.
//
// What it prints is what go test prints without -v: a line for each package, and the
// output of tests that fail. The table of times follows. It goes on when a command fails,
// as go test goes on with the next package, and exits with 1 then.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("timing", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var beside, after []string
	flags.Func("beside", "`command` to run meanwhile", func(command string) error {
		beside = append(beside, command)
		return nil
	})
	flags.Func("after", "`command` to run once those without -beside have ended", func(command string) error {
		after = append(after, command)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() == 0 {
		fmt.Fprintln(stderr, "timing: no command")
		return 2
	}
	began := time.Now()
	r := newReport(stdout)
	var failed atomic.Bool
	all := func(commands []string) {
		for _, command := range commands {
			if err := execute(ctx, command, r, stderr); err != nil {
				fmt.Fprintf(stderr, "timing: %s: %v\n", command, err)
				failed.Store(true)
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { all(beside) })
	all(flags.Args())
	for _, command := range after {
		wg.Go(func() { all([]string{command}) })
	}
	wg.Wait()
	r.table(time.Since(began))
	if failed.Load() {
		return 1
	}
	return 0
}

// execute runs one command and feeds its events to the report.
func execute(ctx context.Context, command string, r *report, stderr io.Writer) error {
	words := strings.Fields(command)
	at := slices.Index(words, "test")
	if at < 0 {
		return fmt.Errorf("it is not a go test")
	}
	words = slices.Insert(words, at+1, "-json")
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // go test ends its tests, and those their processes
	cmd.WaitDelay = 30 * time.Second
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := r.read(out); err != nil {
		return err
	}
	err = cmd.Wait()
	r.worked(command, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	return err
}
