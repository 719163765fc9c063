// Package managed restricts what is acted on to instances that carry a tag.
//
//	source ─► managed.Accepter ─┬─ has the tag ──► the next Accepter
//	                            └─ has it not ───► Unmanaged: nothing is done
//
// EventBridge cannot filter by tag, so a cluster is notified of every instance of its account.
// Instances are looked up in batches, a burst of hundreds in a few calls, and answers are
// kept for a while. An instance that EC2 does not know has no tag.
//
// A lookup must not cost an interruption. If EC2 does not answer within patience, or refuses
// to, an instance that is a Node of this cluster counts as managed: better to drain one node
// too many than to lose the pods of one. So does an instance that is no Node, as nothing is
// done about it, unless a lifecycle hook waits for it: such a notice is an error, and is
// delivered again. The reason is logged when it changes.
//
// All methods are safe for concurrent use.
package managed

import (
	"context"
	"fmt"
	"strings"
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
	firstPause = 100 * time.Millisecond
	maxPause   = 500 * time.Millisecond
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
	faults  awsfault.Reporter
}

// New returns an Accepter. It makes no call.
func New(o Options) *Accepter {
	return &Accepter{opts: o, lookups: newLookups(o)}
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
	var last error
	has, err := backoff.Retry(bounded, func() (bool, error) {
		has, err := a.lookups.has(bounded, id)
		if last == nil || bounded.Err() == nil {
			last = err // what failed says more than that the time is over
		}
		if _, hopeless := awsfault.Hopeless(err); hopeless {
			err = backoff.Permanent(err)
		}
		return has, err
	}, backoff.WithBackOff(awsfault.Pauses(firstPause, maxPause, 0.5)))
	if err != nil {
		err = last
	}
	return has, err
}

// failed logs why EC2 does not answer, once for each reason.
func (a *Accepter) failed(err error) {
	if !a.faults.Changed(awsfault.Of(err)) {
		return
	}
	e := a.opts.Logger.Error().Err(err).Str("tag", a.opts.Tag.String())
	if reason, hopeless := awsfault.Hopeless(err); hopeless {
		e = e.Str("reason", reason+"; the role of this process has to allow it, or --managed-tag has to go")
	}
	e.Msg("cannot look up tags, Nodes of this cluster count as managed")
}

func (a *Accepter) recovered() {
	if a.faults.Recovered() {
		a.opts.Logger.Info().Str("tag", a.opts.Tag.String()).Msg("tags can be looked up again")
	}
}

// Tag is what an instance has to carry. The zero Tag restricts nothing.
type Tag struct {
	Key string
	// Value is compared only if Exact is set.
	Value string
	Exact bool
}

// ParseTag reads KEY or KEY=VALUE; an empty text is the zero Tag. KEY= asks for the empty
// value.
func ParseTag(text string) (Tag, error) {
	if text == "" {
		return Tag{}, nil
	}
	var t Tag
	t.Key, t.Value, t.Exact = strings.Cut(text, "=")
	switch {
	case t.Key == "":
		return Tag{}, fmt.Errorf("%q has no key: want KEY or KEY=VALUE", text)
	case strings.TrimSpace(t.Key) != t.Key || strings.TrimSpace(t.Value) != t.Value:
		return Tag{}, fmt.Errorf("%q begins or ends with space", text)
	}
	return t, nil
}

// String is the text that ParseTag reads.
func (t Tag) String() string {
	if t.Exact {
		return t.Key + "=" + t.Value
	}
	return t.Key
}

// meets reports whether an instance with this value of the tag, or without it, is managed.
func (t Tag) meets(value string, has bool) bool { return has && (!t.Exact || value == t.Value) }
