package managed

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"spot-handler/e2e/asgemu"
	"spot-handler/handler/interruption"
)

// EC2's filters know wildcards, of which a key may be full.
func TestTagsAreThoseOfTheKey(t *testing.T) {
	server := asgemu.Start(asgemu.Options{})
	t.Cleanup(server.Close)
	client := ec2.NewFromConfig(aws.Config{Region: "eu-west-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")},
		func(o *ec2.Options) { o.BaseEndpoint, o.Retryer = &server.URL, aws.NopRetryer{} })
	const key = `like/it*?\\x`
	var ids []string
	for range 4 {
		ids = append(ids, asgemu.NewInstanceID())
		server.CreateInstance(ids[len(ids)-1])
	}
	server.Tag(ids[0], key, "v & <w>")
	server.Tag(ids[1], key, "")
	server.Tag(ids[2], `like/it-is-x\x`, "v")
	l := newLookups(Options{EC2: client, Tag: Tag{Key: key}})
	got, err := l.ask(t.Context(), append(ids, asgemu.NewInstanceID()))
	if diff := cmp.Diff(map[string]string{ids[0]: "v & <w>", ids[1]: ""}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// pages answers one tag at a time.
type pages []string

var _ EC2 = pages{}

func (p pages) DescribeTags(_ context.Context, in *ec2.DescribeTagsInput, _ ...func(*ec2.Options)) (*ec2.DescribeTagsOutput, error) {
	page := 0
	if in.NextToken != nil {
		page, _ = strconv.Atoi(*in.NextToken)
	}
	out := &ec2.DescribeTagsOutput{Tags: []types.TagDescription{{ResourceId: &p[page], Key: aws.String("team"), Value: aws.String("a")}}}
	if page++; page < len(p) {
		out.NextToken = aws.String(strconv.Itoa(page))
	}
	return out, nil
}

func TestEveryPageIsRead(t *testing.T) {
	p := pages{"i-1", "i-2", "i-3"}
	got, err := newLookups(Options{EC2: p, Tag: Tag{Key: "team"}}).ask(t.Context(), p)
	if err != nil || len(got) != len(p) {
		t.Errorf("%v, %v", got, err)
	}
}

// A burst makes a few calls; what is known makes none.
func TestBurstIsAFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 500
		s := newSetup(t, "team")
		for i := range n / 2 {
			s.ec2.tags[fmt.Sprintf("i-%d", i)] = "blue"
		}
		burst := func() {
			var all sync.WaitGroup
			for i := range 2 * n { // each twice, as SQS may
				all.Go(func() {
					want := interruption.Unmanaged
					if i%n < n/2 {
						want = interruption.Accepted
					}
					s.want(t, fmt.Sprintf("i-%d", i%n), want)
				})
			}
			all.Wait()
		}
		began := time.Now()
		burst()
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("took %s, want one linger and one call", took)
		}
		if s.ec2.count() != 3 || slices.Max(s.ec2.calls) > batchSize {
			t.Errorf("calls of %v instances, want 3 of at most %d", s.ec2.calls, batchSize)
		}
		burst()
		if s.ec2.count() != 3 {
			t.Errorf("%d calls for what was known", s.ec2.count()-3)
		}
		if len(s.next.got) != 2*n {
			t.Errorf("%d passed on, want %d", len(s.next.got), 2*n)
		}
		time.Sleep(lacksFor + 1) // the tags may have been put on meanwhile
		burst()
		if got := s.ec2.count() - 3; got != 2 {
			t.Errorf("%d calls, want 2 for those that had no tag", got)
		}
		time.Sleep(hasFor + 1)
		burst()
		if got := s.ec2.count() - 5; got != 3 {
			t.Errorf("%d calls, want 3 for all", got)
		}
	})
}
