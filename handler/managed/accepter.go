package managed

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

const (
	// patience is the longest that a notice waits for EC2: a small part of the two minutes,
	// and enough for some attempts.
	patience = 2 * time.Second

	// Between failed attempts, give or take half.
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 500 * time.Millisecond
)

// EC2 is the subset of the EC2 API that tags are looked up with. The client should not
// retry by itself.
type EC2 interface {
	DescribeTags(ctx context.Context, in *ec2.DescribeTagsInput, opts ...func(*ec2.Options)) (*ec2.DescribeTagsOutput, error)
}

// Options configure an Accepter. All are required, but for Tag.
type Options struct {
	// Tag is what instances must carry. With the zero Tag every instance is managed, and
	// there are no lookups.
	Tag Tag

	Next  interruption.Accepter // of the notices of managed instances
	EC2   EC2
	Nodes nodes.Finder

	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// Accepter passes on the notices of managed instances.
type Accepter struct {
	opts    Options
	lookups *lookups

	mu      sync.Mutex
	trouble string // why EC2 does not answer; "" while it does
}

// New returns an Accepter. It makes no call.
func New(o Options) *Accepter {
	return &Accepter{opts: o, lookups: newLookups(o.EC2, o.Tag, newMetrics(o.Registerer))}
}

// Accept settles a notice as Unmanaged, or passes it on.
func (a *Accepter) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	if a.opts.Tag == (Tag{}) || n.InstanceID == "" {
		return a.opts.Next.Accept(ctx, n)
	}
	has, err := a.lookup(ctx, n.InstanceID)
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("look up tags of %s: %w", n.InstanceID, context.Cause(ctx))
	case err == nil && !has:
		a.recovered()
		a.opts.Logger.Debug().Str("instance_id", n.InstanceID).Str("kind", string(n.Kind)).Msg("instance is not managed")
		return interruption.Unmanaged, nil
	case err == nil:
		a.recovered()
		return a.opts.Next.Accept(ctx, n)
	}
	a.failed(err)
	if _, ours := a.opts.Nodes.Find(n); !ours && n.Hook != nil {
		return "", fmt.Errorf("look up tags of %s, which is no Node and waits at a lifecycle hook: %w", n.InstanceID, err)
	}
	return a.opts.Next.Accept(ctx, n)
}

// lookup tries for patience. A missing permission ends it at once.
func (a *Accepter) lookup(ctx context.Context, id string) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	wait := &backoff.ExponentialBackOff{
		InitialInterval: firstBackoff, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: maxBackoff,
	}
	var last error
	for {
		has, err := a.lookups.has(bounded, id)
		if err == nil {
			return has, nil
		}
		if last == nil || bounded.Err() == nil {
			last = err // what failed says more than that the time is over
		}
		if _, hopeless := awsfault.Hopeless(err); hopeless {
			return false, last
		}
		pause := time.NewTimer(wait.NextBackOff())
		select {
		case <-pause.C:
		case <-bounded.Done():
			pause.Stop()
			return false, last
		}
	}
}

// failed logs why EC2 does not answer, once for each reason.
func (a *Accepter) failed(err error) {
	why := awsfault.Result(err)
	a.mu.Lock()
	changed := a.trouble != why
	a.trouble = why
	a.mu.Unlock()
	if !changed {
		return
	}
	e := a.opts.Logger.Error().Err(err).Str("tag", a.opts.Tag.String())
	if reason, hopeless := awsfault.Hopeless(err); hopeless {
		e = e.Str("reason", reason+"; the role of this process has to allow it, or --managed-tag has to go")
	}
	e.Msg("cannot look up tags, Nodes of this cluster count as managed")
}

func (a *Accepter) recovered() {
	a.mu.Lock()
	changed := a.trouble != ""
	a.trouble = ""
	a.mu.Unlock()
	if changed {
		a.opts.Logger.Info().Str("tag", a.opts.Tag.String()).Msg("tags can be looked up again")
	}
}
