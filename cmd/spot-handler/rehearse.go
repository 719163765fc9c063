package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/cmd/spot-handler/internal/audit"
	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/internal/rehearse"
	"spot-handler/cmd/spot-handler/internal/report"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// rehearseCommand is what the operator has asked `rehearse` for.
type rehearseCommand struct {
	commonFlags
	chosen  selection
	random  int
	loss    plan.Loss
	release bool
	assumed plan.Assumptions

	maxShare        int
	despiteFindings bool
	yes             bool

	outcome outcomeFlags
}

func newRehearse() *cobra.Command { return new(rehearseCommand).command() }

func (r *rehearseCommand) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rehearse NODE... | --pool=POOL | --random=N",
		Short: "Interrupt nodes without EC2, and put them back into service",
		Long: `Interrupts nodes as EC2 would, but doesn't end them: spot-handler cordons them, requests
replacements and drains them, and then returns each node to service. Pods really move.
A real notice from EC2 for one of the nodes wins at once.

It shows the plan and asks first. Then it follows each pod to its end, and compares that
with the plan. It refuses nodes whose pods have findings that audit calls critical, and
more than 10% of all nodes at once. Ctrl-C cancels the rehearsal and restores everything.

It needs the permissions of audit, plan and observe, and to patch nodes. Exit codes: 0 if
every node is back in service, or terminated with --release; 1 if not, or if the
rehearsal was cancelled; 2 for wrong use, or if it was refused before anything was
touched; 3 if a --require condition wasn't met.`,
		Example: `  # one node, with a minute less than EC2 gives
  spot-handler rehearse ip-10-0-1-2.ec2.internal --deadline=60s

  # a mass interruption: five spot nodes of a pool, lost within half a minute
  spot-handler rehearse --pool=batch --random=5 --over=30s --report=loss.html

  # in a pipeline that holds a staging cluster to it
  spot-handler rehearse --random=1 --yes --require=left=0,dip=0,slack=20s`,
		ValidArgsFunction: r.completeNodes(anyNode),
	}
	which, what, refuse, assume, show := titled("Nodes"), titled("Rehearsal"), titled("Refusals"), titled("Assumptions"), titled("Output")
	r.chosen.define(which)
	which.IntVar(&r.random, "random", 0,
		"`number` of nodes to draw, of the spot nodes among those described, or among all")
	oneOf(what, (*string)(&r.loss.Kind), "kind", string(interruption.SpotInterruption), names(rehearse.Kinds()),
		"what is rehearsed: "+strings.Join(names(rehearse.Kinds()), ", "))
	least := bounds{rehearse.LeastDeadline, ever, false, rehearse.LeastDeadline.String() + " or more: with less, pods get no grace period"}
	within(what, &r.loss.Deadline, "deadline", 2*time.Minute, least,
		"time that each node has, at least 25s; a rebalance recommendation has no deadline, and is cancelled "+
			"after this time")
	within(what, &r.loss.Over, "over", 0, anyTime, "time over which the notices of several nodes are spread")
	what.BoolVar(&r.release, "release", false, "terminate the nodes at the end, as after an interruption")
	refuse.IntVar(&r.maxShare, "max-share", 10,
		"refuse if more than this `percentage` of all nodes would be interrupted at once; one node is always "+
			"allowed")
	refuse.BoolVar(&r.despiteFindings, "despite-findings", false, "go on although audit finds something critical about pods on the nodes")
	refuse.BoolVarP(&r.yes, "yes", "y", false, "do not ask; needed where there is no terminal")
	defineAssumptions(assume, &r.assumed)
	r.outcome.define(show)
	r.define(cmd, show, which, what, refuse, assume)
	cmd.RunE = r.run
	return cmd
}

func (r *rehearseCommand) validate() error {
	var errs []error
	if r.random < 0 || r.random > 0 && len(r.chosen.names) > 0 {
		errs = append(errs, fmt.Errorf("--random=%d: want a number of nodes, and none by name", r.random))
	}
	if r.maxShare < 0 || r.maxShare > 100 {
		errs = append(errs, fmt.Errorf("--max-share=%d: want a percentage", r.maxShare))
	}
	return errors.Join(errs...)
}

// errRefused is what ends a rehearsal before anything is touched.
var errRefused = fmt.Errorf("%w: refused", errUsage)

func (r *rehearseCommand) run(cmd *cobra.Command, args []string) error {
	r.chosen.any = r.random > 0
	if err := errors.Join(r.chosen.parse(args), r.validate()); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	ctx, stdout, stderr := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	c, err := r.connect()
	if err != nil {
		return err
	}
	read, err := c.read(ctx, "") // the pods of all namespaces move
	if err != nil {
		return err
	}
	chosen, err := r.chosen.choose(read.Nodes)
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	cfg, err := c.settings(ctx, namesOf(chosen)...)
	if err != nil {
		return err
	}
	rehearsal := rehearse.New(c.nodes, rehearse.Options{Loss: r.loss, Release: r.release, Rules: rulesOf(cfg.settings, nil)}, time.Now())
	if chosen, err = r.draw(chosen, rehearsal); err == nil {
		err = r.refuse(read, cfg.settings, chosen, rehearsal)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	screen := r.live(stdout, stderr)
	defer screen.End()
	loss := r.loss
	if loss.Kind == interruption.RebalanceRecommendation {
		loss.Deadline = 0 // it has none
	}
	forecast, err := c.forecast(ctx, read.In(r.namespace), chosen, loss, r.assumed, &plan.Requests{})
	if err != nil {
		return err
	}
	width := screen.Columns()
	_ = screen.Print(slices.Concat(plan.Lines(forecast, width), []string{""}, r.announcement(chosen, width))...)
	if err := r.confirm(ctx, cmd.InOrStdin(), screen); err != nil {
		return err
	}
	recording, err := c.watchRehearsal(ctx, rehearsal, chosen, r.namespace, screen)
	if len(recording.Nodes) == 0 {
		return err
	}
	screen.End()
	scored := r.outcome.conclude(report.Of(recording, &forecast), &r.commonFlags, stdout, stderr)
	if err != nil { // then nobody can ask for more
		return err
	}
	return scored
}

func namesOf(nodes []*corev1.Node) (list []string) {
	for _, node := range nodes {
		list = append(list, node.Name)
	}
	return list
}

// watchRehearsal runs the rehearsal, once everything is watched, and shows it until all is over.
// The recording is empty if nothing was begun.
func (c *caller) watchRehearsal(
	ctx context.Context, rehearsal *rehearse.Rehearsal, chosen []*corev1.Node, namespace string, screen *console.Screen,
) (observe.Recording, error) {
	observer := observe.New(time.Now(), namesOf(chosen)...)
	following, stop := context.WithCancel(context.WithoutCancel(ctx)) // what is cancelled is watched too
	defer stop()
	watched, followed := make(chan struct{}), make(chan error, 1)
	go func() { followed <- c.follow(following, observer, namespace, screen, func() { close(watched) }) }()
	select {
	case <-watched:
	case err := <-followed:
		return observe.Recording{}, err
	case <-ctx.Done():
		stop()
		return observe.Recording{}, errors.Join(rehearse.ErrCancelled, <-followed)
	}
	err := rehearsal.Run(ctx, namesOf(chosen), func(text string) { _ = screen.Print(text) })
	if err != nil {
		stop()
	}
	err = errors.Join(err, <-followed)
	return observer.Recording(time.Now()), err
}

// draw draws from the nodes if that is asked for.
func (r *rehearseCommand) draw(chosen []*corev1.Node, rehearsal *rehearse.Rehearsal) ([]*corev1.Node, error) {
	if r.random == 0 {
		return chosen, nil
	}
	atRisk := func(n *corev1.Node) bool { return nodes.ReclaimOf(n) == nodes.Reclaimable }
	if r.chosen.described() { // the operator knows what unlabelled nodes are
		atRisk = nodes.AtRisk(chosen)
	}
	chosen = slices.DeleteFunc(chosen, func(n *corev1.Node) bool {
		_, against := rehearsal.Judge(n, time.Now())
		return !atRisk(n) || against != ""
	})
	if len(chosen) < r.random {
		return nil, fmt.Errorf("--random=%d: there are %d nodes to draw from: only nodes that are labelled as spot count, or that you describe",
			r.random, len(chosen))
	}
	rand.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	chosen = chosen[:r.random]
	slices.SortFunc(chosen, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return chosen, nil
}

// refuse says all that stands against the rehearsal, at once.
func (r *rehearseCommand) refuse(read cluster.Cluster, cfg settings, chosen []*corev1.Node, rehearsal *rehearse.Rehearsal) error {
	var errs []error
	on := map[string]bool{}
	for _, node := range chosen {
		on[node.Name] = true
		if _, against := rehearsal.Judge(node, time.Now()); against != "" {
			errs = append(errs, fmt.Errorf("node %s: %s", node.Name, against))
		}
	}
	if n, most := rehearse.Share(read.Nodes, chosen, r.maxShare); n > most {
		errs = append(errs, fmt.Errorf("%d of %d nodes would be interrupted at once, and --max-share=%d allows %d",
			n, len(read.Nodes), r.maxShare, most))
	}
	if r.despiteFindings {
		return errors.Join(errs...)
	}
	for _, what := range read.Unread {
		errs = append(errs, fmt.Errorf("cannot know what is critical: %s (--despite-findings does without)", what))
	}
	snapshot := audit.NewSnapshot(read, audit.Options{
		Margin: cfg.policy.Margin,
		AtRisk: func(n *corev1.Node) bool { return on[n.Name] },
	})
	for _, f := range audit.Of(snapshot) {
		if f.Severity == audit.Critical && f.Pods > 0 {
			errs = append(errs, fmt.Errorf("%s %s %s: %s: %s (%s; --despite-findings goes on)", f.ID, f.Namespace, f.Object, f.What, f.Why, f.Page))
		}
	}
	return errors.Join(errs...)
}

// announcement says what is about to happen.
func (r *rehearseCommand) announcement(chosen []*corev1.Node, width int) []string {
	end := "put back into service"
	if r.release {
		end = "terminated"
	}
	over := ""
	if r.loss.Over > 0 && len(chosen) > 1 {
		over = fmt.Sprintf(", begun over %s", r.loss.Over)
	}
	begin := fmt.Sprintf("Rehearsal of a %s with a deadline of %s on %s%s: %s.",
		r.loss.Kind, r.loss.Deadline, console.Count(len(chosen), "node"), over, strings.Join(namesOf(chosen), ", "))
	return append(
		console.Wrap(begin, "", width),
		console.Wrap(fmt.Sprintf("Pods really move; at the end each node is %s.", end), "", width)...)
}

// confirm asks whether to go on.
func (r *rehearseCommand) confirm(ctx context.Context, stdin io.Reader, out io.Writer) error {
	if r.yes {
		return nil
	}
	if f, ok := stdin.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return fmt.Errorf("%w: there is no terminal to ask on: give --yes", errRefused)
	}
	fmt.Fprintln(out, `Type "yes" to begin:`)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stdin).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
	case line := <-answer:
		if line == "yes" || line == "y" {
			return nil
		}
	}
	return fmt.Errorf("%w: not begun", errRefused)
}
