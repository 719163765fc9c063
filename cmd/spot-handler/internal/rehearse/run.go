package rehearse

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

const (
	// step is how often the nodes, which are in memory, are read.
	step = 250 * time.Millisecond

	// takenUpIn is how soon the daemon has to do something about a cordoned node. It takes a
	// second, in a mass interruption some more.
	takenUpIn = 20 * time.Second

	// cancelledIn is how long to wait until all is undone, once it is cancelled. An eviction that
	// is under way has to be answered first.
	cancelledIn = time.Minute

	// terminatedIn is how long to wait for a node to be terminated, once its drain is over.
	terminatedIn = 30 * time.Second
)

// ErrCancelled says that a rehearsal was cancelled before its end.
var ErrCancelled = errors.New("cancelled")

// part is one node's part in a rehearsal.
type part struct {
	node    string
	begun   time.Time
	version string // of the Node, once the record was written
	over    bool   // its drain has ended
}

// Run begins the rehearsal on each node in its turn, and returns when all nodes are in service
// again, or terminated. If ctx ends before that, it is cancelled, and Run returns when
// everything is undone. say gets what people should know meanwhile.
func (r *Rehearsal) Run(ctx context.Context, names []string, say func(string)) error {
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx)) // what is cancelled has to be undone
	index, ended := nodes.New(r.nodes, "", zerolog.Nop()), make(chan struct{})
	go func() { defer close(ended); _ = index.Run(lasting) }()
	defer func() { stop(); <-ended }()
	if err := index.Wait(ctx); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		say("cancelled: each node is put back as it was")
		time.AfterFunc(cancelledIn, stop)
	})()
	errs := make([]error, len(names))
	var parts sync.WaitGroup
	for i, name := range names {
		parts.Go(func() { errs[i] = r.play(ctx, lasting, name, r.opts.After(i, len(names)), index) })
	}
	parts.Wait()
	if ctx.Err() != nil {
		return errors.Join(ErrCancelled, errors.Join(errs...))
	}
	return errors.Join(errs...)
}

// play writes the record of one node when its turn comes, and returns when the node is in service again,
// or terminated. If ctx ends before that, its part is cancelled, for which there is time until
// lasting ends.
func (r *Rehearsal) play(ctx, lasting context.Context, name string, after time.Duration, index *nodes.Index) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(after):
	}
	node, err := r.begin(ctx, name)
	if err != nil && ctx.Err() != nil { // it might have been written all the same
		node, err = r.cancel(lasting, name)
	}
	switch {
	case err != nil:
		return err
	case node == nil:
		return fmt.Errorf("node %s is gone", name)
	}
	p := part{node: name, begun: time.Now(), version: node.ResourceVersion}
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		done, err := r.follow(lasting, &p, ctx.Err() != nil, index)
		if done {
			return err
		}
		select {
		case <-lasting.Done():
			return errors.Join(fmt.Errorf("node %s: spot-handler has not put it back within %s: its log says why", name, cancelledIn), err)
		case <-ticker.C:
		}
	}
}

// follow sees how far a node has come, and does what the daemon does not. It reports whether its part
// is done; until then it is called again, whatever the error.
func (r *Rehearsal) follow(ctx context.Context, p *part, cancelled bool, index *nodes.Index) (done bool, err error) {
	now := time.Now()
	node, there := index.Get(p.node)
	switch {
	case !there && !p.over && !r.opts.Release:
		return true, fmt.Errorf("node %s went before its rehearsal was over", p.node)
	case !there:
		return true, nil
	case nodes.Older(node.ResourceVersion, p.version):
		return false, nil // what was written has not come back yet
	}
	rec, ours := r.record(node)
	switch {
	case !ours && rec.Kind != "" && !rec.Rehearsed():
		return true, fmt.Errorf("node %s is interrupted by EC2: spot-handler drains it", p.node)
	case !ours, rec.Phase == interruption.Released:
		return true, nil
	}
	switch p.over = rec.Phase.Over(); {
	case p.over && r.opts.Release && !rec.Ended.IsZero() && now.Sub(rec.Ended) > terminatedIn:
		return true, fmt.Errorf("node %s is drained, but was not terminated: see --release-node of spot-handler", p.node)
	case p.over:
		return false, nil
	case rec.Phase == interruption.Noticed && rec.Replacement == nil && now.Sub(p.begun) > takenUpIn:
		undone, err := r.takeBack(ctx, p.node)
		if err != nil || !undone {
			return false, err
		}
		return true, fmt.Errorf("node %s: nobody has begun to drain it within %s, so it was put back: does spot-handler run here, without --dry-run and --cordon-only?", p.node, takenUpIn)
	case node.Annotations[interruption.CancelAnnotation] == "true": // it is being undone
	case cancelled, !r.opts.hasDeadline() && now.Sub(p.begun) > r.opts.Deadline:
		_, err = r.cancel(ctx, p.node)
	}
	return false, err
}
