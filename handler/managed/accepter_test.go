package managed

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

type fakeNext struct {
	mu  sync.Mutex
	got []string
}

func (f *fakeNext) Accept(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got = append(f.got, n.InstanceID)
	return interruption.Accepted, nil
}

// fakeEC2 takes a while to answer, and fails as long as it is told to.
type fakeEC2 struct {
	mu    sync.Mutex
	tags  map[string]string
	takes time.Duration
	fail  error
	calls []int // how many instances each was about
}

func (f *fakeEC2) DescribeTags(ctx context.Context, in *ec2.DescribeTagsInput, _ ...func(*ec2.Options)) (*ec2.DescribeTagsOutput, error) {
	f.mu.Lock()
	ids, key := in.Filters[0].Values, in.Filters[1].Values[0]
	f.calls = append(f.calls, len(ids))
	takes, fail, out := f.takes, f.fail, &ec2.DescribeTagsOutput{}
	for _, id := range ids {
		if v, ok := f.tags[id]; ok {
			out.Tags = append(out.Tags, types.TagDescription{ResourceId: &id, Key: &key, Value: &v})
		}
	}
	f.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return out, fail
}

func (f *fakeEC2) set(change func(*fakeEC2)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeEC2) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.calls)
}

type fakeIndex map[string]bool

func (f fakeIndex) Find(n interruption.Notice) (*corev1.Node, bool) {
	return &corev1.Node{}, f[n.InstanceID]
}

var (
	_ interruption.Accepter = (*fakeNext)(nil)
	_ EC2                   = (*fakeEC2)(nil)
	_ nodes.Finder          = fakeIndex{}
)

type setup struct {
	*Accepter
	next *fakeNext
	ec2  *fakeEC2
	log  *bytes.Buffer
}

func newSetup(t *testing.T, tag string, nodes ...string) *setup {
	t.Helper()
	parsed, err := ParseTag(tag)
	if err != nil {
		t.Fatal(err)
	}
	s := &setup{next: &fakeNext{}, ec2: &fakeEC2{tags: map[string]string{}, takes: 50 * time.Millisecond}, log: &bytes.Buffer{}}
	index := fakeIndex{}
	for _, id := range nodes {
		index[id] = true
	}
	s.Accepter = New(Options{
		Tag: parsed, Next: s.next, EC2: s.ec2, Nodes: index,
		Registerer: prometheus.NewRegistry(), Logger: zerolog.New(zerolog.SyncWriter(s.log)).Level(zerolog.InfoLevel),
	})
	return s
}

func (s *setup) accept(t *testing.T, id string, hook *interruption.Hook) (interruption.Verdict, error) {
	t.Helper()
	return s.Accept(t.Context(), interruption.Notice{Kind: interruption.SpotInterruption, InstanceID: id, Hook: hook})
}

func (s *setup) want(t *testing.T, id string, want interruption.Verdict) {
	t.Helper()
	if got, err := s.accept(t, id, nil); got != want || err != nil {
		t.Errorf("%s: %q, %v, want %q", id, got, err, want)
	}
}

func TestTags(t *testing.T) {
	for tag, want := range map[string]map[string]interruption.Verdict{
		"team":      {"i-blue": interruption.Accepted, "i-red": interruption.Accepted, "i-empty": interruption.Accepted, "i-gone": interruption.Unmanaged},
		"team=blue": {"i-blue": interruption.Accepted, "i-red": interruption.Unmanaged, "i-empty": interruption.Unmanaged, "i-gone": interruption.Unmanaged},
		"team=":     {"i-blue": interruption.Unmanaged, "i-red": interruption.Unmanaged, "i-empty": interruption.Accepted, "i-gone": interruption.Unmanaged},
		"":          {"i-blue": interruption.Accepted, "i-red": interruption.Accepted, "i-empty": interruption.Accepted, "i-gone": interruption.Accepted},
	} {
		t.Run(tag, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSetup(t, tag, "i-gone") // also the tag of a Node decides
				s.ec2.tags = map[string]string{"i-blue": "blue", "i-red": "red", "i-empty": ""}
				for _, id := range slices.Sorted(maps.Keys(want)) {
					s.want(t, id, want[id])
				}
				if tag == "" && s.ec2.count() > 0 {
					t.Errorf("%d calls without a tag", s.ec2.count())
				}
			})
		})
	}
}

// A hook of an instance that is not managed is nobody's business here.
func TestHookOfAnUnmanagedInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, "team")
		if got, err := s.accept(t, "i-1", &interruption.Hook{Group: "g"}); got != interruption.Unmanaged || err != nil || len(s.next.got) > 0 {
			t.Errorf("%q, %v, passed on %v", got, err, s.next.got)
		}
	})
}

// EC2 away: a Node of ours is drained, in time; a hook that may be another's waits.
func TestEC2Away(t *testing.T) {
	for name, fail := range map[string]func(*fakeEC2){
		"throttled": func(f *fakeEC2) { f.fail = &smithy.GenericAPIError{Code: "RequestLimitExceeded"} },
		"hangs":     func(f *fakeEC2) { f.takes = time.Hour },
		"denied": func(f *fakeEC2) {
			f.fail = &smithy.GenericAPIError{Code: "UnauthorizedOperation", Message: "You are not"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSetup(t, "team", "i-ours", "i-ours-2")
				s.ec2.set(fail)
				began := time.Now()
				s.want(t, "i-ours", interruption.Accepted)
				if took := time.Since(began); took > patience || name == "denied" && took > 100*time.Millisecond {
					t.Errorf("took %s", took)
				}
				s.want(t, "i-else", interruption.Accepted) // of which the handler says that it is unknown
				if _, err := s.accept(t, "i-hook", &interruption.Hook{}); err == nil {
					t.Error("the hook of an instance of which nothing is known was passed on")
				}
				s.want(t, "i-ours-2", interruption.Accepted)
				if n := strings.Count(s.log.String(), "cannot look up tags"); n != 1 {
					t.Errorf("said %d times:\n%s", n, s.log)
				}
				if name == "denied" {
					if s.ec2.count() != 1 || !strings.Contains(s.log.String(), "ec2:DescribeTags") {
						t.Errorf("%d calls, want 1:\n%s", s.ec2.count(), s.log)
					}
				}
				time.Sleep(refusedFor)
				s.ec2.set(func(f *fakeEC2) { f.fail, f.takes = nil, time.Millisecond })
				if got, err := s.accept(t, "i-hook", &interruption.Hook{}); got != interruption.Unmanaged || err != nil {
					t.Errorf("EC2 is back: %q, %v", got, err)
				}
				if !strings.Contains(s.log.String(), "tags can be looked up again") {
					t.Errorf("not said that EC2 is back:\n%s", s.log)
				}
			})
		})
	}
}

// One failure of a call is tried again within the patience of those who wait.
func TestTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, "team")
		s.ec2.set(func(f *fakeEC2) { f.fail = errors.New("connection reset") })
		time.AfterFunc(500*time.Millisecond, func() { s.ec2.set(func(f *fakeEC2) { f.fail = nil }) })
		s.want(t, "i-1", interruption.Unmanaged)
		if s.log.Len() > 0 {
			t.Errorf("nothing to say of that: %s", s.log)
		}
	})
}

func TestCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, "team", "i-1")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		if _, err := s.Accept(ctx, interruption.Notice{InstanceID: "i-1"}); !errors.Is(err, context.Canceled) || len(s.next.got) > 0 {
			t.Errorf("%v, passed on %v", err, s.next.got)
		}
		time.Sleep(callTimeout)
	})
}
