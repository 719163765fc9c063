// Command demo shows one spot interruption from the notice to the end of the node, live
// in this terminal, with spot-handler as a process of its own on a real control plane
// with Karpenter.
//
//	go run ./e2e/demo
//
// A service of 12 replicas, 10 of which a disruption budget wants ready, runs on two spot
// nodes. EC2 announces that it takes one of them in 120 seconds, in a message of a queue. What
// happens then is shown by `spot-handler observe`, which reads it from watches of the Kubernetes
// API alone. It sums up, and writes a report for a browser.
//
// On a terminal there is one view, redrawn in place. Elsewhere, and with TERM=dumb, each change is
// a line.
//
// The programs of the control plane are built on first use, which takes about 9 minutes
// on 2 cores; after that they start in seconds, and the demo takes a minute or two.
// Ctrl-C at any moment ends all of it.
//
// Exit codes: 0 the interruption ended well, 1 it did not or something failed, 130 interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait: what we started dies with us
	err := play(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: interrupted:", err) // also says if something could not be stopped
		return 130
	case !errors.Is(err, errEndedBadly): // the observer has said why
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	return 1
}
