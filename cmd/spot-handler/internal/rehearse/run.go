package rehearse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

const (
	// step is how often the nodes, which are in memory, are read.
	step = 250 * time.Millisecond

	// atOnce is how many Nodes are written at the same time.
	atOnce = 16

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
	node      string
	at        time.Time // when its notice is due
	begun     time.Time
	version   string // of the Node, once the record was written
	cancelled bool
	over      bool // its drain has ended
	done      bool
	err       error
}

// Run begins the rehearsal on each node in its turn, and returns when all nodes are in service
// again, or terminated. If ctx ends before that, it is cancelled, and Run returns when
// everything is undone. say gets what people should know meanwhile.
func (r *Rehearsal) Run(ctx context.Context, names []string, say func(string)) error {
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	index, ended := nodes.New(r.nodes, "", zerolog.Nop()), make(chan struct{})
	go func() { defer close(ended); _ = index.Run(watching) }()
	defer func() { cancel(); <-ended }()
	if err := index.Wait(ctx); err != nil {
		return err
	}
	parts := r.parts(names, time.Now())
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	// until acts again and again, and reports whether all parts were done before ctx ended.
	until := func(ctx context.Context, act func(context.Context, []*part)) bool {
		for ctx.Err() == nil {
			act(ctx, parts)
			r.follow(ctx, parts, index)
			if !slices.ContainsFunc(parts, func(p *part) bool { return !p.done }) {
				return true
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
		return false
	}
	if until(ctx, r.begins) {
		return errorOf(parts)
	}
	say("cancelled: each node is put back as it was")
	undoing, stop := context.WithTimeout(watching, cancelledIn)
	defer stop()
	parts = slices.DeleteFunc(parts, func(p *part) bool { return p.begun.IsZero() })
	if !until(undoing, r.cancels) {
		return errors.Join(ErrCancelled, stillMarked(parts), errorOf(parts))
	}
	return errors.Join(ErrCancelled, errorOf(parts))
}

// cancels cancels what has begun and is not over.
func (r *Rehearsal) cancels(ctx context.Context, parts []*part) {
	each(parts, func(p *part) {
		p.err = r.cancel(ctx, p.node)
		p.cancelled = p.err == nil
	}, func(p *part) bool { return !p.done && !p.over && !p.cancelled })
}

func stillMarked(parts []*part) error {
	var names []string
	for _, p := range parts {
		if !p.done {
			names = append(names, p.node)
		}
	}
	return fmt.Errorf("spot-handler has not put back %s within %s: its log says why", strings.Join(names, ", "), cancelledIn)
}

// parts gives each node its turn: the first now, the last when the time is over.
func (r *Rehearsal) parts(names []string, now time.Time) []*part {
	list := make([]*part, len(names))
	for i, name := range names {
		list[i] = &part{node: name, at: now.Add(r.opts.Over * time.Duration(i) / time.Duration(max(1, len(names)-1)))}
	}
	return list
}

// begins writes the records whose time has come.
func (r *Rehearsal) begins(ctx context.Context, parts []*part) {
	now := time.Now()
	each(parts, func(p *part) {
		node, err := r.begin(ctx, p.node)
		switch {
		case ctx.Err() != nil && err != nil:
			p.at = now // it might have been written all the same
		case err != nil:
			p.done, p.err = true, err
			return
		case node == nil:
			p.done, p.err = true, fmt.Errorf("node %s is gone", p.node)
			return
		default:
			p.version = node.ResourceVersion
		}
		p.begun = time.Now()
	}, func(p *part) bool { return !p.done && p.begun.IsZero() && !now.Before(p.at) })
}

// each does it with those parts that want it, many at the same time.
func each(parts []*part, do func(*part), wants func(*part) bool) {
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, p := range parts {
		if wants(p) {
			g.Go(func() error { do(p); return nil })
		}
	}
	_ = g.Wait() // the errors are in the parts
}

// follow sees how far each part has come, and does what the daemon does not.
func (r *Rehearsal) follow(ctx context.Context, parts []*part, index *nodes.Index) {
	now := time.Now()
	each(parts, func(p *part) { r.followPart(ctx, p, index, now) }, func(p *part) bool { return !p.done && !p.begun.IsZero() })
}

func (r *Rehearsal) followPart(ctx context.Context, p *part, index *nodes.Index, now time.Time) {
	node, there := index.Get(p.node)
	if !there {
		p.done = true
		if !p.over && !r.opts.Release {
			p.err = fmt.Errorf("node %s went before its rehearsal was over", p.node)
		}
		return
	}
	if nodes.Older(node.ResourceVersion, p.version) {
		return // what was written has not come back yet
	}
	rec, ours := r.record(node)
	switch {
	case ours:
		r.followRecord(ctx, p, rec, now)
	case rec.Kind != "" && !rec.Rehearsed():
		p.done, p.err = true, fmt.Errorf("node %s is interrupted by EC2: spot-handler drains it", p.node)
	default:
		p.done, p.err = true, nil
	}
}

// followRecord follows a rehearsal that is under way.
func (r *Rehearsal) followRecord(ctx context.Context, p *part, rec interruption.Record, now time.Time) {
	p.over = rec.Phase.Over()
	switch {
	case rec.Phase == interruption.Released:
		p.done = true
	case p.over && r.opts.Release && !rec.Ended.IsZero() && now.Sub(rec.Ended) > terminatedIn:
		p.done, p.err = true, fmt.Errorf("node %s is drained, but was not terminated: see --release-node of spot-handler", p.node)
	case !p.over && !r.opts.hasDeadline() && now.Sub(p.begun) > r.opts.Deadline:
		p.err = r.cancel(ctx, p.node)
	case rec.Phase == interruption.Noticed && rec.Replacement == nil && now.Sub(p.begun) > takenUpIn:
		undone, err := r.takeBack(ctx, p.node)
		if p.err = err; undone && err == nil {
			p.done, p.err = true, fmt.Errorf("node %s: nobody has begun to drain it within %s, so it was put back: does spot-handler run here, without --dry-run and --cordon-only?", p.node, takenUpIn)
		}
	}
}

func errorOf(parts []*part) error {
	var errs []error
	for _, p := range parts {
		if p.err != nil {
			errs = append(errs, p.err)
		}
	}
	return errors.Join(errs...)
}
