package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"spot-handler/drain"
)

// atOnce is how many requests are under way at a time.
const atOnce = 16

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

// Trial asks the API server what it would say to an interruption: it sends the requests that
// webhooks, policies, quotas and budgets surprise with, as dry runs and with the permissions of the
// person who asks. Nothing changes.
//
// It holds for the moment at which it is asked. Each pod's eviction is tried by itself: a budget
// that would let one of two pods go allows both.
//
// It is safe for concurrent use.
type Trial struct {
	mu      sync.Mutex
	answers Answers
}

// Drain tries what moves the pods of a plan: the surges, and every eviction. The client is of the core
// API.
func (t *Trial) Drain(ctx context.Context, client rest.Interface, plan []drain.Decision, now time.Time) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, d := range plan {
		if !d.Moves() || d.Pod.DeletionTimestamp != nil {
			continue
		}
		what := "pods/" + d.Pod.Namespace + "/" + d.Pod.Name
		if d.Surge && !drain.IsSurged(d.Pod) {
			g.Go(func() error { return t.Note("surge", what, drain.TrySurge(ctx, client, d.Pod, now)) })
		}
		g.Go(func() error { return t.Note("evict", what, drain.TryEviction(ctx, client, d)) })
	}
	return g.Wait()
}

// Requested notes that an object of a replacement was tried.
func (t *Trial) Requested(object string, err error) {
	_ = t.Note("request", object, err) // what is no answer, the provisioner says itself
}

// Note notes what was tried on an object, and how it ended. An error that is not the API server's
// answer is returned: then nobody knows.
func (t *Trial) Note(verb, object string, err error) error {
	var status apierrors.APIStatus
	if err != nil && (!errors.As(err, &status) || status.Status().Code == 0) {
		return fmt.Errorf("try to %s %s: %w", verb, object, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers.Tried++
	if err == nil || apierrors.IsNotFound(err) && verb != "request" { // it has gone meanwhile
		return nil
	}
	why, budget := text(status.Status())
	i := slices.IndexFunc(t.answers.Refused, func(r Refusal) bool { return r.Verb == verb && r.Why == why })
	if i < 0 {
		t.answers.Refused = append(t.answers.Refused, Refusal{Verb: verb, Why: why, Budget: budget})
		i = len(t.answers.Refused) - 1
	}
	t.answers.Refused[i].Objects = append(t.answers.Refused[i].Objects, object)
	return nil
}

// text is what the API server said, without the name of the object, which differs.
func text(s metav1.Status) (why string, budget bool) {
	why = s.Message
	d := s.Details
	if d == nil {
		return why, false
	}
	kind := d.Kind
	if d.Group != "" {
		kind += "." + d.Group
	}
	why = strings.TrimPrefix(why, fmt.Sprintf("%s %q is forbidden: ", kind, d.Name))
	why = strings.TrimPrefix(why, fmt.Sprintf("%s %q is invalid: ", kind, d.Name))
	for _, c := range d.Causes {
		if c.Type == policyv1.DisruptionBudgetCause {
			return strings.TrimSpace(why + " " + c.Message), true
		}
	}
	return why, false
}

// Answers are those until now, what concerns the most objects first.
func (t *Trial) Answers() Answers {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := Answers{As: []string{"yourself"}, Tried: t.answers.Tried, Refused: []Refusal{}}
	for _, r := range t.answers.Refused {
		r.Objects = slices.Sorted(slices.Values(r.Objects))
		a.Refused = append(a.Refused, r)
	}
	slices.SortFunc(a.Refused, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(len(b.Objects), len(a.Objects)), strings.Compare(a.Verb, b.Verb), strings.Compare(a.Why, b.Why))
	})
	return a
}
