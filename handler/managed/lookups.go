package managed

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/prometheus/client_golang/prometheus"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/readcache"
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
	l.answers.Lifetime = lifetime
	l.answers.Read = func(ctx context.Context, id string) (struct{}, error) {
		if err := l.refused.Standing("", refusedFor); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, l.batches.Do(ctx, id)
	}
	return l
}

// lifetime is how long the answer counts that came with this error.
func lifetime(err error) time.Duration {
	switch {
	case err == nil:
		return hasFor
	case errors.Is(err, errLacks):
		return lacksFor
	}
	return 0
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
		if value, has := values[id]; err == nil && !l.tag.meets(value, has) {
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
