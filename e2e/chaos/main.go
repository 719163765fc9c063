// Command chaos loses nodes while everything around spot-handler fails, and checks after each
// round that what the manual promises without conditions has held.
//
//	go run ./e2e/chaos -seed 7 -minutes 30
//
// It runs three replicas of spot-handler in queue mode, as processes of their own with the
// chart's permissions, on a real control plane with Karpenter; or, by the seed, three in mode
// drain and one on each node that marks it. In each round nodes are lost in
// groups: notices with deadlines, recommendations, reservations, stops, also twice, and also
// cancelled. Meanwhile replicas are killed and paused; the API server and the queue hang,
// are slow, throttle, fail, or take a request and lose its answer; the network to either is
// cut; Deployments roll, scale and go, and budgets change. Pods ask when to be evicted, belong to
// gangs, and have receivers that answer, hang or talk nonsense. The last fault is over before the
// first deadlines come.
//
// A round is a function of the seed and its number (package plan); what fails may fail at
// another moment when it is played again, as processes run as they like. What a round has left
// behind, in the audit log, the queue and the cluster, is judged by package evidence. The
// first broken invariant ends the run: it prints the round, what was seen, where the logs
// are, and how to play the round again.
//
// The flags are those that -help prints.
//
// Exit codes: 0 all invariants held, 1 one did not or something failed, 2 wrong use.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"spot-handler/e2e/chaos/plan"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := options{out: stdout}
	flags.Uint64Var(&o.seed, "seed", rand.Uint64N(1_000_000), "of all rounds; by default another one each time")
	minutes := flags.Float64("minutes", 10, "no round begins later")
	round := flags.Int("round", 0, "play this round, and no other")
	short := flags.Bool("short", false, "rounds with shorter deadlines, as in the tests")
	flags.StringVar(&o.mode, "mode", "", "of the chart: queue or imds (default: as the seed has it)")
	flags.StringVar(&o.dir, "dir", "", "directory for the logs (default: a temporary one, which only a failure leaves behind)")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if flags.NArg() > 0 || *round < 0 || *minutes < 0 || o.mode != "" && o.mode != "queue" && o.mode != "imds" {
		fmt.Fprintln(stderr, "chaos: want no arguments, no negative numbers, and mode queue or imds")
		return 2
	}
	o.first, o.only = max(1, *round), *round > 0
	o.until = time.Duration(*minutes * float64(time.Minute))
	if *short {
		o.size = plan.Short
	}
	temporary := o.dir == ""
	if temporary {
		var err error
		if o.dir, err = os.MkdirTemp("", "chaos-"); err != nil {
			fmt.Fprintln(stderr, "chaos:", err)
			return 1
		}
	}
	sum, err := run(ctx, o)
	fmt.Fprintf(stdout, "\nseed %d, mode %s: %s", o.seed, o.draw(1).Mode, sum)
	if err != nil {
		fmt.Fprintln(stderr, "chaos:", err)
		return 1
	}
	if temporary {
		_ = os.RemoveAll(o.dir) // nobody needs the logs of a good run
	}
	return 0
}
