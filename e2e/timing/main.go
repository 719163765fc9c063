// Command timing runs `go test` and says in the end where the time went, and what did not run.
//
//	go run ./e2e/timing [-record FILE] [-beside COMMAND]... [-after COMMAND]... COMMAND...
//
// Each COMMAND is one line for the shell's words, without quoting, such as `go test
// -count=1 ./drain`. They run one after the other, and those of -beside meanwhile, one
// after the other too. Those of -after begin once the former have ended, all at the same time,
// whether or not there is something beside them. Each must be a `go test`: -json is added to it.
//
// With -record, FILE then says what ran, see [ran]; for each pair of versions it keeps the last run.
//
// What it prints is what go test prints without -v: a line for each package, and the
// output of tests that fail. The table of times follows. It goes on when a command fails,
// as go test goes on with the next package, and exits with 1 then. At SIGINT and SIGTERM it ends
// the commands and what they have started.
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
	file := flags.String("record", "", "YAML `file` of what ran")
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
	var done ran
	if *file != "" {
		var err error
		if done, err = planned(); err != nil {
			fmt.Fprintf(stderr, "timing: %v\n", err)
			return 2
		}
	}
	began := time.Now()
	r := newReport(stdout)
	var failed atomic.Bool
	all := func(commands []string) {
		for _, command := range commands {
			took, err := execute(ctx, command, r, stderr)
			r.worked(command, took, err)
			if err != nil {
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
	if *file != "" && ctx.Err() == nil {
		r.count(&done)
		if err := done.keep(*file); err != nil {
			fmt.Fprintf(stderr, "timing: %v\n", err)
			return 1
		}
	}
	if failed.Load() {
		return 1
	}
	return 0
}

// execute runs one command, feeds its events to the report, and says how long processors worked for it.
func execute(ctx context.Context, command string, r *report, stderr io.Writer) (took time.Duration, err error) {
	words := strings.Fields(command)
	at := slices.Index(words, "test")
	if at < 0 {
		return 0, fmt.Errorf("it is not a go test")
	}
	words = slices.Insert(words, at+1, "-json")
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	// go test waits for its tests, and does not end them: they get the signal as at a terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	if err := r.read(out); err != nil {
		return 0, err
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // whoever is left; usually nobody
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), err
}
