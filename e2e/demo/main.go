// Command demo shows one spot interruption from the notice to the end of the node, live
// in this terminal, with spot-handler as a process of its own on a real control plane
// with Karpenter.
//
//	go run ./e2e/demo
//
// A service of 12 replicas, 10 of which a disruption budget wants ready, runs on two spot
// nodes. EC2 announces that it takes one of them in 120 seconds. What happens then is shown
// by `spot-handler observe`, which reads it from watches of the Kubernetes API alone. It sums
// up, and writes a report for a browser.
//
// On a terminal there is one view, redrawn in place. Elsewhere each change is a line.
//
// The programs of the control plane are built on first use, which takes about 9 minutes
// on 2 cores; after that they start in seconds, and the demo takes a minute or two.
// Ctrl-C at any moment ends all of it.
//
// Flags:
//
//	-mode    how spot-handler learns of the interruption: queue, from an emulator of
//	         SQS (default), or imds, from one of the instance metadata service
//	-plain   lines on a terminal too
//
// Exit codes: 0 the interruption ended well, 1 it did not or something failed,
// 2 wrong use, 130 interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// Modes of spot-handler.
const (
	queueMode = "queue"
	imdsMode  = "imds"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr *os.File) int {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	mode := flags.String("mode", queueMode, "how spot-handler learns of the interruption: queue or imds")
	plain := flags.Bool("plain", false, "print lines on a terminal too")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if !slices.Contains([]string{queueMode, imdsMode}, *mode) || flags.NArg() > 0 {
		fmt.Fprintf(stderr, "demo: -mode is %q, want queue or imds, and there are no arguments\n", *mode)
		return 2
	}

	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	notInterrupted := context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait: what we started dies with us
	defer notInterrupted()
	err := play(ctx, *mode, *plain, stdout, stderr)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "demo: interrupted:", err) // also says if something could not be stopped
		return 130
	case !errors.Is(err, errEndedBadly): // the observer has said why
		fmt.Fprintln(stderr, "demo:", err)
	}
	return 1
}
