package managed

import (
	"context"
	"strconv"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"spot-handler/e2e/asgemu"
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
	l := newLookups(client, Tag{Key: key}, nil)
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
	got, err := newLookups(p, Tag{Key: "team"}, nil).ask(t.Context(), p)
	if err != nil || len(got) != len(p) {
		t.Errorf("%v, %v", got, err)
	}
}
