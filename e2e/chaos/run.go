package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"spot-handler/e2e/chaos/evidence"
	"spot-handler/e2e/chaos/plan"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
)

// options say what is run.
type options struct {
	seed  uint64
	first int           // round
	only  bool          // that one
	until time.Duration // no round begins later
	size  plan.Size
	mode  string // of the chart; empty: as the seed has it
	dir   string // for logs

	out io.Writer
}

func (o options) draw(number int) plan.Round {
	r := plan.Draw(o.seed, number, o.size)
	if o.mode != "" {
		r.Mode = o.mode
	}
	return r
}

// errBroken: an invariant does not hold. What was broken has been printed.
var errBroken = errors.New("an invariant was broken")

// run plays rounds until the time is over or an invariant is broken.
func run(ctx context.Context, o options) (sum tally, err error) {
	began := time.Now()
	var printing sync.Mutex
	say := func(format string, args ...any) {
		printing.Lock()
		defer printing.Unlock()
		fmt.Fprintf(o.out, format+"\n", args...)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	say("start the control plane; logs are in %s", o.dir)
	cluster, err := controlplane.Start(ctx, controlplane.Options{Karpenter: true, Audit: true, Dir: o.dir, Log: o.out})
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	go func() {
		<-cluster.Done()
		cancel(errors.New("the control plane ended"))
	}()

	first := o.draw(o.first)
	if err := install(ctx, cluster, first.Mode, o.out); err != nil {
		return sum, err
	}
	if err := pools(ctx, cluster, first.Boot()); err != nil {
		return sum, err
	}
	if err := writeToken(ctx, cluster, tokenFile(o.dir), accountOf(first.Mode), ""); err != nil {
		return sum, err
	}
	server := sqsemu.Start()
	defer server.Close()
	queue := server.Queue("spot-handler")
	s := &stage{dir: o.dir, cluster: cluster, queue: queue, observer: observe(ctx, cluster), heard: newReceivers(), say: say, late: map[string]bool{}}
	defer s.heard.close()
	flags := append(append(first.Flags(), noticing...), "--rebalance-ttl="+rebalanceTTL.String(), "--replacement-ttl="+replacementTTL.String())
	kubelets, running := errgroup.WithContext(ctx)
	defer func() { err = errors.Join(err, kubelets.Wait()) }()
	defer cancel(nil)
	for number := range plan.Replicas {
		args := []string{"queue", "--queue-url=" + queue.URL()}
		if first.Mode == "imds" {
			args = []string{"drain"}
		}
		args = append(append(args, "--pod-namespace="+namespace), flags...)
		r, err := newReplica(number, o.dir, tokenFile(o.dir), cluster, server.URL, daemon.Options{Args: args})
		if err != nil {
			return sum, err
		}
		defer r.close()
		s.replicas = append(s.replicas, r)
		kubelets.Go(func() error { return r.run(running) })
	}

	for number := o.first; ; number++ {
		s.round = o.draw(number)
		found, err := s.playRound(running)
		if err != nil {
			return sum, fmt.Errorf("round %d of seed %d: %w", number, o.seed, err)
		}
		sum.add(s.round, found)
		broken := evidence.Check(found)
		if len(broken) > 0 {
			say("\n%s%s", s.round, explain(found, broken))
			say("logs and the audit log are in %s; to play it again: %s", o.dir, again(o, number))
			return sum, errBroken
		}
		say("round %d of seed %d held: %s", number, o.seed, brief(found))
		if o.only || time.Since(began) > o.until {
			return sum, nil
		}
	}
}

// again is the command that plays a round once more.
func again(o options, number int) string {
	command := fmt.Sprintf("make chaos SEED=%d ROUND=%d", o.seed, number)
	if o.mode != "" {
		command += " MODE=" + o.mode
	}
	if o.size == plan.Short {
		command += " SHORT=1"
	}
	return command
}

// playRound sets the scene, plays the round, and returns the evidence.
func (s *stage) playRound(ctx context.Context) (found evidence.Round, err error) {
	if err := clear(ctx, s.cluster); err != nil {
		return found, err
	}
	if s.nodes, err = nodesFor(ctx, s.cluster); err != nil {
		return found, err
	}
	if err := services(ctx, s.cluster, s.round, s.heard); err != nil {
		return found, err
	}
	if err := writeToken(ctx, s.cluster, tokenFile(s.dir), accountOf(s.round.Mode), ""); err != nil {
		return found, err
	}
	if err := s.waitReplicas(ctx); err != nil {
		return found, err
	}
	stop, err := s.mark(ctx)
	if err != nil {
		return found, err
	}
	defer stop()
	s.observer.forget()
	s.heard.take()
	before, err := s.requests()
	if err != nil {
		return found, err
	}
	var starts int64
	for _, r := range append(slices.Clone(s.replicas), s.markers...) {
		starts -= r.starts.Load()
		r.takeUnexpected()
	}
	s.say("\n%s", s.round)
	began := time.Now()
	if err := s.play(ctx); err != nil {
		return found, err
	}
	if err := pause(ctx, time.Until(began.Add(s.round.Calm()))); err != nil {
		return found, err
	}
	unsettled, err := s.settle(ctx, began.Add(s.round.Last()+settleWithin))
	if err != nil {
		return found, err
	}
	found.Unsettled = unsettled
	for _, r := range s.replicas {
		starts += r.starts.Load()
		found.Unexpected = append(found.Unexpected, r.takeUnexpected()...)
	}
	for i, r := range s.markers {
		starts += r.starts.Load()
		if s.observer.gone(s.nodes[i]).IsZero() { // else its pod would be gone too
			found.Unexpected = append(found.Unexpected, r.takeUnexpected()...)
		}
	}
	found.Starts = int(starts)
	return found, s.gather(&found, evidence.LastLease(before))
}

// waitReplicas waits until all are ready, and one leads.
func (s *stage) waitReplicas(ctx context.Context) error {
	return poll(ctx, 2*time.Minute, func(ctx context.Context) (bool, error) {
		leaders := 0
		for _, r := range s.replicas {
			if !r.ready(ctx) {
				return false, nil
			}
			if r.leads(ctx) {
				leaders++
			}
		}
		return leaders == 1, nil
	})
}

// requests are those that the audit log has received since the last call.
func (s *stage) requests() ([]evidence.Request, error) {
	text, err := s.cluster.AuditText(s.audited)
	if err != nil {
		return nil, err
	}
	s.audited += int64(len(text))
	return evidence.Requests(text)
}

// gather fills in what was seen. Who led before says who led at the begin.
func (s *stage) gather(found *evidence.Round, before []evidence.Request) (err error) {
	if found.Margin, err = time.ParseDuration(flagValue(s.round.Flags(), "margin")); err != nil {
		return fmt.Errorf("read the flags: %w", err)
	}
	during, err := s.requests()
	if err != nil {
		return err
	}
	found.Requests = append(before, during...)
	slices.SortStableFunc(found.Requests, func(a, b evidence.Request) int { return a.At.Compare(b.At) })
	deleted := map[string]time.Time{}
	for _, m := range s.queue.Messages() {
		if m.State == sqsemu.Deleted {
			deleted[m.ID] = m.DeletedAt
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		m.Deleted = deleted[m.ID]
		found.Messages = append(found.Messages, m)
	}
	for _, l := range s.losses {
		found.Losses = append(found.Losses, *l)
	}
	slices.SortFunc(found.Losses, func(a, b evidence.Loss) int { return strings.Compare(a.Node, b.Node) })
	found.Notices = s.heard.take()
	s.observer.fill(found)
	return nil
}
