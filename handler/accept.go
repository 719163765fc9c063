package handler

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
)

// acceptAttempts bounds how often Accept writes again after somebody else changed the Node at
// the same time. Each attempt reads the Node again, so needing more than one or two means that
// something keeps rewriting the Node; the source comes back later.
const acceptAttempts = 5

// acceptsAtOnce is how many notices are written concurrently. It is enough to keep any API
// server busy. More would only make each wait longer, and all other requests with them. An API
// server at its defaults has 98 places for the level that the chart's FlowSchema puts cordons in.
const acceptsAtOnce = 64

// Accept records a notice on its Node. It returns an error only if the notice is not settled
// and has to be delivered again; otherwise the verdict says what became of it. Unknown means
// that no Node is that instance right now: the source decides whether to ask again.
func (h *Handler) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	h.accepting.Add(1)
	defer func() {
		if h.accepting.Add(-1) == burst-1 {
			h.resume()
		}
	}()
	rules := h.rulesFor(n)
	if err := h.writing.Acquire(ctx, 1); err != nil {
		return "", fmt.Errorf("wait for a place among %d notices: %w", acceptsAtOnce, err)
	}
	defer h.writing.Release(1)
	node, ok := h.opts.Index.Find(n)
	if !ok {
		return interruption.Unknown, nil
	}
	for range acceptAttempts {
		verdict, err := h.record(ctx, node, n, rules)
		switch {
		case err == nil:
			return verdict, nil
		case apierrors.IsNotFound(err):
			return interruption.Unknown, nil
		case !apierrors.IsConflict(err):
			return "", fmt.Errorf("mark node %q: %w", node.Name, err)
		}
		fresh, err := h.opts.Nodes.Get(ctx, node.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return interruption.Unknown, nil
		}
		if err != nil {
			return "", fmt.Errorf("read node %q: %w", node.Name, err)
		}
		node = fresh
	}
	return "", fmt.Errorf("mark node %q: changed by others %d times in a row", node.Name, acceptAttempts)
}

// errPolicyNotRead: the Node was not known when the policy was to be read.
var errPolicyNotRead = errors.New("rebalance policy has not been read")

// rulesFor are the rules by which the notice is judged, without any request. The rebalance policy is read
// here, before the notice takes a place among the writers, as a slow read must not hold up others'
// notices; and only if the notice leaves time for it.
func (h *Handler) rulesFor(n interruption.Notice) nodes.RulesFunc {
	policy, notRead := interruption.RebalancePolicy(""), errPolicyNotRead
	if node, ok := h.opts.Index.Find(n); ok && !n.Kind.Certain() {
		var rules interruption.Rules
		rules, notRead = h.opts.Rules(node, true)
		policy = rules.Rebalance
	}
	return func(node *corev1.Node, recommended bool) (interruption.Rules, error) {
		rules, err := h.opts.Rules(node, false)
		if recommended {
			rules.Rebalance, err = policy, notRead
		}
		return rules, err
	}
}

// record writes what the notice means for its Node, if that is news.
func (h *Handler) record(ctx context.Context, node *corev1.Node, n interruption.Notice, rules nodes.RulesFunc) (interruption.Verdict, error) {
	j := interruption.Judge(nodes.Case(node, n, rules, time.Now()))
	if j.Verdict != interruption.Accepted {
		if len(j.Early) == 0 {
			return j.Verdict, nil
		}
		patch := marks.Remember(node, j.Early)
		return j.Verdict, h.opts.Nodes.Mark(ctx, node.Name, patch.Type, patch.Data)
	}
	patch := marks.Accept(node, j.Record)
	if n.Withdrawn {
		patch = marks.Withdraw(node, j.Record)
	}
	if err := h.opts.Nodes.Mark(ctx, node.Name, patch.Type, patch.Data); err != nil {
		return "", err
	}
	h.accepted(node, *patch.Record, n)
	return interruption.Accepted, nil
}

func (h *Handler) accepted(node *corev1.Node, rec interruption.Record, n interruption.Notice) {
	took := time.Since(n.Received)
	if registered := node.CreationTimestamp.Time; registered.After(n.Received) { // the notice has waited for its Node
		took = max(0, time.Since(registered))
	}
	log := h.opts.Logger.Info().Str("node", node.Name).EmbedObject(rec).Str("event_id", n.EventID).Str("phase", string(rec.Phase)).
		Float64("took_seconds", took.Seconds())
	switch {
	case n.Withdrawn:
		log.Msg("announcement withdrawn")
		return
	case rec.Phase.Over():
		log.Msg("interruption accepted, drain is over already")
		h.metrics.noticed(n)
		return
	case rec.Phase == interruption.Waiting:
		log.Msg("interruption accepted, drain waits")
	default:
		log.Msg("interruption accepted, node cordoned")
		h.metrics.cordoned(n.Source, took)
	}
	h.metrics.noticed(n)
	if rec.Event == n.EventID { // else a further word on an interruption already announced
		h.opts.Events.Notify(notify.Noticed(node, rec))
	}
}

// announcedBefore is how long before this process began to reconcile another is taken to have
// announced what was recorded: as long as it takes until another leads. What was recorded in
// between is announced, twice rather than never.
const announcedBefore = 10 * time.Second

// announce notifies people of a notice that somebody else has recorded: an operator who rehearses one, or
// a process on the node itself. Such a process only marks its Node and notifies nobody, so that spot
// nodes need no right to make Events, and no webhook's secret. One that drains its own node has
// notified them when it accepted the notice.
func (r *reconciliation) announce(context.Context) (done bool, err error) {
	announced := r.known.announced
	r.known.announced = r.rec.Event
	byNode := r.opts.Node == "" && r.rec.Source == interruption.IMDS
	switch {
	case !byNode && !r.rec.Rehearsed(), announced == r.rec.Event:
	case announced == "" && r.rec.Received.Before(r.began.Add(-announcedBefore)):
	default:
		r.opts.Events.Notify(notify.Noticed(r.node, r.rec))
	}
	return false, nil
}
