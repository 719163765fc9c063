package plan

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"spot-handler/drain"
	"spot-handler/drain/plan"
	"spot-handler/handler/dryrun"
)

// atOnce is how many requests are under way at a time.
const atOnce = 16

// Requests are those by which the daemon would change the cluster; none does. What would be created
// is noted, and answered as if it existed now; all else is refused.
//
// With DryRun they are sent as dry runs, with the permissions of the person who asks, and so is what
// moves pods: these are what webhooks, policies, quotas and budgets surprise with. The answers hold
// for the moment at which they are asked for. Each pod's eviction is tried by itself: a budget that
// would let one of two pods go allows both.
//
// It is safe for concurrent use.
type Requests struct {
	DryRun bool

	mu      sync.Mutex
	made    []dryrun.Created // since the last take
	answers Answers
}

// Answers are what the API server said.
type Answers struct {
	// As says as whom requests were tried.
	As []string `json:"as"`
	// Tried is how many requests were tried.
	Tried int `json:"tried"`
	// Refused are those that were refused, the same answers together.
	Refused []Refusal `json:"refused"`
}

// Refusal is an answer that refuses requests.
type Refusal struct {
	// Verb is what was tried: request, surge or evict.
	Verb string `json:"verb"`
	// Why is the API server's own text.
	Why string `json:"why"`
	// Budget: a disruption budget refuses, as it stands now.
	Budget  bool     `json:"budget,omitempty"`
	Objects []string `json:"objects"` // such as pods/default/web-1
}

// Over is the transport of clients whose requests are these; they write JSON. Whatever uses it cannot
// change the cluster by mistake.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
func (q *Requests) Over(next http.RoundTripper) http.RoundTripper {
	if !q.DryRun {
		return dryrun.Transport(next, q.create)
	}
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if dryrun.Reads(r) {
			return next.RoundTrip(r)
		}
		r = r.Clone(r.Context())
		query := r.URL.Query()
		query.Set("dryRun", "All")
		r.URL.RawQuery = query.Encode()
		if !dryrun.Creates(r) {
			return next.RoundTrip(r)
		}
		return q.tryToCreate(next, r)
	})
}

// tryToCreate sends a request that creates an object, as a dry run, and notes the answer.
func (q *Requests) tryToCreate(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	c, err := dryrun.CreatedBy(r)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(c.Object))
	r.Header.Set("Accept", runtime.ContentTypeJSON) // noteCreation reads the answer
	answer, err := next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if err := q.noteCreation(c, answer); err != nil {
		return nil, err
	}
	if answer.StatusCode < http.StatusBadRequest {
		q.create(c)
	}
	return answer, nil
}

func (q *Requests) create(c dryrun.Created) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.made = append(q.made, c)
}

// noteCreation notes what the API server said about an object of a replacement.
func (q *Requests) noteCreation(c dryrun.Created, answer *http.Response) error {
	var o struct{ Metadata metav1.ObjectMeta }
	_ = json.Unmarshal(c.Object, &o) // we have made it
	var refusal error
	if answer.StatusCode >= http.StatusBadRequest {
		text, err := io.ReadAll(answer.Body)
		if err = errors.Join(err, answer.Body.Close()); err != nil {
			return err
		}
		answer.Body = io.NopCloser(bytes.NewReader(text))
		status := &apierrors.StatusError{}
		if json.Unmarshal(text, &status.ErrStatus) != nil || status.ErrStatus.Code == 0 {
			return nil // it is no answer, which the provisioner says itself
		}
		refusal = status
	}
	return q.note("request", c.Resource+"/"+o.Metadata.Name, refusal)
}

// collect returns what was created since the last time.
func (q *Requests) collect() []dryrun.Created {
	q.mu.Lock()
	defer q.mu.Unlock()
	made := q.made
	q.made = nil
	return made
}

// drain tries what moves the pods of a plan: the surges, and every eviction. The client is of the core
// API.
func (q *Requests) drain(ctx context.Context, client rest.Interface, decisions []plan.Decision, now time.Time) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, d := range decisions {
		if !d.Moves() || d.Pod.DeletionTimestamp != nil {
			continue
		}
		what := "pods/" + d.Pod.Namespace + "/" + d.Pod.Name
		if d.Surge && !plan.IsSurged(d.Pod) {
			g.Go(func() error { return q.note("surge", what, drain.Relabel(ctx, client, plan.AsSurged(d.Pod, now))) })
		}
		g.Go(func() error { return q.note("evict", what, drain.PostEviction(ctx, client, d)) })
	}
	return g.Wait()
}

// note notes what was tried on an object, and how it ended. An error that is not the API server's
// answer is returned: then nobody knows.
func (q *Requests) note(verb, object string, err error) error {
	var status apierrors.APIStatus
	if err != nil && (!errors.As(err, &status) || status.Status().Code == 0) {
		return fmt.Errorf("try to %s %s: %w", verb, object, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answers.Tried++
	if err == nil || apierrors.IsNotFound(err) && verb != "request" { // it has gone meanwhile
		return nil
	}
	why, budget := text(status.Status())
	i := slices.IndexFunc(q.answers.Refused, func(r Refusal) bool { return r.Verb == verb && r.Why == why })
	if i < 0 {
		q.answers.Refused = append(q.answers.Refused, Refusal{Verb: verb, Why: why, Budget: budget})
		i = len(q.answers.Refused) - 1
	}
	q.answers.Refused[i].Objects = append(q.answers.Refused[i].Objects, object)
	return nil
}

// text is what the API server said, without the name of the object, which differs.
func text(s metav1.Status) (why string, budget bool) {
	why = s.Message
	d := s.Details
	if d == nil {
		return why, false
	}
	for _, verdict := range []string{"forbidden", "invalid"} {
		if _, rest, found := strings.Cut(why, fmt.Sprintf(" %q is %s: ", d.Name, verdict)); found {
			why = rest
		}
	}
	for _, c := range d.Causes {
		if c.Type == policyv1.DisruptionBudgetCause {
			return strings.TrimSpace(why + " " + c.Message), true
		}
	}
	return why, false
}

// result is what was said until now, what concerns the most objects first.
func (q *Requests) result() *Answers {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := &Answers{As: []string{"yourself"}, Tried: q.answers.Tried, Refused: append([]Refusal{}, q.answers.Refused...)}
	for _, r := range a.Refused {
		slices.Sort(r.Objects)
	}
	slices.SortFunc(a.Refused, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(len(b.Objects), len(a.Objects)), strings.Compare(a.Verb, b.Verb), strings.Compare(a.Why, b.Why))
	})
	return a
}
