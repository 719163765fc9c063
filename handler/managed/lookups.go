package managed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/cache"

	"spot-handler/handler/awsfault"
)

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

	// maxAnswers bounds the answers that are kept, at about 100 bytes each.
	maxAnswers = 8192

	// refusedFor is how long there are no calls after one that lacked the permission.
	refusedFor = 15 * time.Second
)

// lookups asks EC2 about many instances at once, and remembers what it said. It has no
// goroutine of its own: the timer of a batch's first instance makes the call.
type lookups struct {
	ec2   EC2
	tag   Tag
	calls *prometheus.CounterVec

	mu   sync.Mutex
	open map[string]*batch // by instance: in next, or being called for
	next *batch

	answers *cache.LRUExpireCache // whether an instance has the tag

	refused      error
	refusedUntil time.Time
}

type batch struct {
	ctx  context.Context // the first caller's, without its end
	ids  []string
	has  map[string]bool
	err  error
	done chan struct{} // closed when has or err is set
}

func newLookups(o Options) *lookups {
	calls := awsfault.NewCalls(o.Registerer, "spot_handler_tag_lookups_total", "Calls to EC2 for the tags of instances, by what came of them.")
	return &lookups{ec2: o.EC2, tag: o.Tag, calls: calls, open: map[string]*batch{}, answers: cache.NewLRUExpireCache(maxAnswers)}
}

// has reports whether the instance carries the tag, as EC2 says or said lately.
func (l *lookups) has(ctx context.Context, id string) (bool, error) {
	l.mu.Lock()
	if has, ok := l.answers.Get(id); ok {
		l.mu.Unlock()
		return has == true, nil
	}
	if l.refused != nil && time.Now().Before(l.refusedUntil) {
		defer l.mu.Unlock()
		return false, l.refused
	}
	b := l.open[id]
	if b == nil {
		b = l.add(ctx, id)
	}
	l.mu.Unlock()
	select {
	case <-b.done:
		return b.has[id], b.err
	case <-ctx.Done():
		return false, fmt.Errorf("wait for EC2: %w", context.Cause(ctx))
	}
}

// add puts the instance into the next batch. The caller holds the lock.
func (l *lookups) add(ctx context.Context, id string) *batch {
	if l.next == nil {
		b := &batch{ctx: context.WithoutCancel(ctx), done: make(chan struct{})}
		l.next = b
		time.AfterFunc(linger, func() { l.run(b) })
	}
	b := l.next
	b.ids = append(b.ids, id)
	l.open[id] = b
	if len(b.ids) == batchSize {
		l.next = nil // its timer makes the call
	}
	return b
}

func (l *lookups) run(b *batch) {
	l.mu.Lock()
	if l.next == b {
		l.next = nil
	}
	ids := slices.Clone(b.ids) // complete from here on
	l.mu.Unlock()

	ctx, cancel := context.WithTimeout(b.ctx, callTimeout)
	defer cancel()
	values, err := l.ask(ctx, ids)
	err = awsfault.Classify("ec2", "DescribeTags", err)
	l.calls.WithLabelValues(awsfault.Result(err)).Inc()

	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(b.done)
	b.err, b.has = err, map[string]bool{}
	l.refused = nil
	if _, hopeless := awsfault.Hopeless(err); hopeless {
		l.refused, l.refusedUntil = err, time.Now().Add(refusedFor)
	}
	for _, id := range ids {
		delete(l.open, id)
		if err == nil {
			value, has := values[id]
			b.has[id] = l.tag.meets(value, has)
			ttl := lacksFor
			if b.has[id] {
				ttl = hasFor
			}
			l.answers.Add(id, b.has[id], ttl)
		}
	}
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
