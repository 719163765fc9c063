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
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/readcache"
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
	case err != nil:
		a.failed(err)
		if _, ours := a.opts.Nodes.Find(n); !ours && n.Hook != nil {
			return "", fmt.Errorf("look up tags of %s, which is not a Node and waits at a lifecycle hook: %w", n.InstanceID, err)
		}
	default:
		a.recovered()
		if !has {
			a.opts.Logger.Debug().Str("instance_id", n.InstanceID).Str("kind", string(n.Kind)).Msg("instance is not managed")
			return interruption.Unmanaged, nil
		}
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

const (
	// linger is how long an incomplete batch waits for more. The notices of a burst come
	// within milliseconds of each other, and every notice waits for it before its cordon.
	linger = 10 * time.Millisecond

	// batchSize is how many instances one call asks about. EC2 takes 200 values in all the
	// filters of a call, and the key is one of them.
	// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html (FilterLimitExceeded)
	batchSize = 190

	// pageSize is the most that EC2 allows. An instance has one tag of a key, so the first
	// page holds them all.
	pageSize = 1000

	// callTimeout bounds one call. Nobody waits for it longer than patience, but its answer is
	// kept for those who come again.
	callTimeout = 5 * time.Second

	// hasFor and lacksFor are how long answers count. Notices of an instance come in groups,
	// and somebody might add a tag that was forgotten.
	hasFor   = 10 * time.Minute
	lacksFor = time.Minute

	// refusedFor is how long there are no calls after one that lacked the permission.
	refusedFor = 15 * time.Second
)

// lookups asks EC2 about many instances at once, and remembers what it said.
type lookups struct {
	ec2   EC2
	tag   Tag
	calls *prometheus.CounterVec

	batches awsfault.Batcher[string, error] // by instance: nil where it has the tag
	answers readcache.Cache[struct{}]       // the same, kept for a while
	refused awsfault.Denials                // under the key ""
}

// errLacks: the instance does not carry the tag.
var errLacks = errors.New("the instance does not carry the tag")

func newLookups(o Options) *lookups {
	l := &lookups{ec2: o.EC2, tag: o.Tag}
	l.calls = awsfault.NewCalls(o.Registerer, "spot_handler_tag_lookups_total", "Calls to EC2 for the tags of instances, by what came of them.")
	l.batches.Size, l.batches.Linger, l.batches.Call = batchSize, linger, l.call
	l.answers.Lifetime = readcache.For(hasFor, lacksFor, errLacks)
	l.answers.Read = func(ctx context.Context, id string) (struct{}, error) {
		if err := l.refused.Standing("", refusedFor); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, l.batches.Do(ctx, id)
	}
	return l
}

// has reports whether the instance carries the tag, as EC2 says or said lately.
func (l *lookups) has(ctx context.Context, id string) (bool, error) {
	_, err := l.answers.Get(ctx, id)
	if errors.Is(err, errLacks) {
		return false, nil
	}
	return err == nil, err
}

// call asks about some instances, and returns nil for those that have the tag.
func (l *lookups) call(ctx context.Context, ids []string) []error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	values, err := l.ask(ctx, ids)
	err = awsfault.Classify("ec2", "DescribeTags", err)
	l.calls.WithLabelValues(awsfault.Result(err)).Inc()
	l.refused.Note("", err)
	results := slices.Repeat([]error{err}, len(ids))
	for i, id := range ids {
		if value, has := values[id]; err == nil && (!has || l.tag.Exact && value != l.tag.Value) {
			results[i] = errLacks
		}
	}
	return results
}

// wildcards escapes what has a meaning of its own in the value of a filter.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html
var wildcards = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`)

// ask returns the value of the tag for each of the instances that has it; one that is not
// there has none.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeTags.html
func (l *lookups) ask(ctx context.Context, ids []string) (map[string]string, error) {
	pages := ec2.NewDescribeTagsPaginator(l.ec2, &ec2.DescribeTagsInput{Filters: []types.Filter{
		{Name: aws.String("resource-id"), Values: ids},
		{Name: aws.String("key"), Values: []string{wildcards.Replace(l.tag.Key)}},
	}}, func(o *ec2.DescribeTagsPaginatorOptions) { o.Limit, o.StopOnDuplicateToken = pageSize, true })
	values := map[string]string{}
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Tags {
			if aws.ToString(t.Key) == l.tag.Key {
				values[aws.ToString(t.ResourceId)] = aws.ToString(t.Value)
			}
		}
	}
	return values, nil
}
