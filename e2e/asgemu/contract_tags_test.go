package asgemu_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
)

func (s *service) tag(t *testing.T, id string, tags map[string]string) {
	t.Helper()
	in := &ec2.CreateTagsInput{Resources: []string{id}}
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		in.Tags = append(in.Tags, types.Tag{Key: aws.String(key), Value: aws.String(tags[key])})
	}
	if _, err := s.ec2.CreateTags(t.Context(), in); err != nil {
		t.Fatal(err)
	}
}

func byInstance(ids []string, filters ...types.Filter) []types.Filter {
	return append([]types.Filter{{Name: aws.String("resource-id"), Values: ids}}, filters...)
}

func byKey(key string) types.Filter {
	return types.Filter{Name: aws.String("key"), Values: []string{key}}
}

// tags maps instances to the values of their tags.
func (s *service) tags(t *testing.T, filters []types.Filter) map[string]string {
	t.Helper()
	out, err := s.ec2.DescribeTags(t.Context(), &ec2.DescribeTagsInput{Filters: filters})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, d := range out.Tags {
		if d.ResourceType != types.ResourceTypeInstance {
			t.Errorf("resource type %s", d.ResourceType)
		}
		found[*d.ResourceId] = *d.Value
	}
	return found
}

func checkTags(t *testing.T, s *service) {
	a, b, c := s.alone(t), s.alone(t), s.alone(t)
	s.tag(t, a, map[string]string{"team": "blue", "other": "x"})
	s.tag(t, b, map[string]string{"team": ""})
	s.tag(t, c, map[string]string{"other": "x"})
	got := s.tags(t, byInstance([]string{a, b, c, unknown(1)[0]}, byKey("team")))
	if diff := cmp.Diff(map[string]string{a: "blue", b: ""}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func checkTagWildcards(t *testing.T, s *service) {
	a, b := s.alone(t), s.alone(t)
	s.tag(t, a, map[string]string{"team*/x": "star"})
	s.tag(t, b, map[string]string{"team-1/x": "none"})
	ids := []string{a, b}
	for key, want := range map[string]map[string]string{
		`team*`:    {a: "star", b: "none"},
		`team\*/x`: {a: "star"},
		`team?1/?`: {b: "none"},
	} {
		if diff := cmp.Diff(want, s.tags(t, byInstance(ids, byKey(key)))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", key, diff)
		}
	}
}

func checkTagLimit(t *testing.T, s *service) {
	_ = s.tags(t, byInstance(unknown(199), byKey("team")))
	_, err := s.ec2.DescribeTags(t.Context(), &ec2.DescribeTagsInput{Filters: byInstance(unknown(200), byKey("team"))})
	wantCode(t, err, "FilterLimitExceeded")
}

func checkTagPages(t *testing.T, s *service) {
	var ids []string
	for range 7 {
		id := s.alone(t)
		s.tag(t, id, map[string]string{"team": "blue"})
		ids = append(ids, id)
	}
	in := &ec2.DescribeTagsInput{Filters: byInstance(ids), MaxResults: aws.Int32(5)}
	var pages []int
	for {
		out, err := s.ec2.DescribeTags(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, len(out.Tags))
		if aws.ToString(out.NextToken) == "" {
			break
		}
		in.NextToken = out.NextToken
	}
	if !slices.Equal(pages, []int{5, 2}) {
		t.Errorf("pages of %v", pages)
	}
}
