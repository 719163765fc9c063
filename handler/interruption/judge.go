package interruption

import (
	"cmp"
	"time"
)

// staleAfter is how long after its deadline we still believe a notice when its node is alive
// and Ready. EC2 acts within seconds of the time that it gives. So if a node is well minutes
// later, either the notice was about an earlier life of it or the message is late: EventBridge
// delivers for up to 24 hours.
const staleAfter = 3 * time.Minute

// recordedLate is how long after it was received a notice is usually recorded, and its node cordoned. When it
// takes longer, as the API server cannot be reached or there is no Node yet, the scheduler goes on to put pods
// on the node: they have not come in spite of the cordon, and have to leave like the others.
const recordedLate = 2 * time.Second

// Node is what a Node says about itself, as far as that affects what a notice means.
type Node struct {
	Instance string // the EC2 instance that it is
	Boot     string // the boot id

	Ready      bool
	ReadySince time.Time // zero if that is not known, or the Node is not Ready

	Deleting    bool // somebody has deleted the Node
	ScalingDown bool // Cluster Autoscaler is about to end the instance
}

// Case is everything that a judgement rests on.
type Case struct {
	Node   Node
	Rules  Rules
	Notice Notice
	Now    time.Time

	// Record is the Node's record. Recorded is false if there is none, or none that can be
	// read.
	Record   Record
	Recorded bool
	// Past holds what must not begin a second time.
	Past Past
	// Cancelling: somebody has cancelled what is recorded, and it is still to be undone.
	Cancelling bool
}

// Recommended reports whether the rebalance policy matters in this case. It never does if the notice says
// that the instance is certain to end.
func (c Case) Recommended() bool {
	return c.Notice.Kind == RebalanceRecommendation ||
		!c.Notice.Kind.Certain() && c.Recorded && c.Record.Kind == RebalanceRecommendation
}

// Judgement is what a notice means for its Node.
type Judgement struct {
	Verdict Verdict
	// Record is what to write; it is meaningful only with the verdict Accepted.
	Record Record
	// Reason says why, in a clause.
	Reason string
	// Early is what the Node is to remember as past, though the verdict isn't Accepted.
	Early Past
}

// Judge says what a notice means. It has no side effects and reads no clock, so anyone who asks
// what would happen gets the answer that the daemon acts on.
func Judge(c Case) Judgement {
	c.Notice.InstanceID = cmp.Or(c.Notice.InstanceID, c.Node.Instance)
	for _, rule := range judging {
		if j, ok := rule(c); ok {
			return j
		}
	}
	return c.merge(c.Record)
}

// judging lists the rules in order; the first that has something to say about a notice decides.
// A notice that no rule settles is merged into the record.
var judging = []func(Case) (Judgement, bool){
	isOfAnotherInstance,
	isUnmanaged,
	isUnwanted,
	isWithdrawal,
	isPast,
	isTooLate,
	isOfAnEarlierRun,
	isEndedByOthers,
	rehearsesUnderWay,
	returnsAnInterrupted,
	endsARehearsal,
	meetsAnUndo,
	isOfTheNextRun,
	isTheFirst,
}

// undecided is the answer of a rule that has nothing to say.
func undecided() (Judgement, bool) { return Judgement{}, false }

// when settles the notice if that holds.
func when(holds bool, v Verdict, reason string) (Judgement, bool) {
	return Judgement{Verdict: v, Reason: reason}, holds
}

// isOfAnotherInstance: a source on the node itself names the Node, and the instance that it
// runs on; if the two do not belong together, the Node's name is wrong.
func isOfAnotherInstance(c Case) (Judgement, bool) {
	return when(c.Node.Instance != "" && c.Notice.InstanceID != c.Node.Instance, Unknown, "the node is instance "+c.Node.Instance)
}

// isUnmanaged: the operator has taken the node out. What was recorded before that is seen to
// its end.
func isUnmanaged(c Case) (Judgement, bool) {
	return when(c.Rules.Unmanaged != "" && !c.Recorded, Unmanaged, c.Rules.Unmanaged)
}

func isUnwanted(c Case) (Judgement, bool) {
	ignored := c.Notice.Kind == RebalanceRecommendation && c.Notice.Source != Return && c.Rules.Rebalance == RebalanceIgnore
	return when(ignored, Ignored, "the policy is to ignore rebalance recommendations")
}

// isWithdrawal: the notice takes back an earlier one. The process that drains then undoes what
// has to be undone. The record says so: by Canceled if nothing else stands, by the phase
// Waiting if the time of what stands has not come yet.
func isWithdrawal(c Case) (Judgement, bool) {
	if !c.Notice.Withdrawn {
		return undecided()
	}
	if !c.Recorded {
		return Judgement{Verdict: Ignored, Reason: "what it takes back is not known", Early: c.early()}, true
	}
	d := c.Record.drop(func(a Announcement) bool { return a.same(c.Notice) })
	rest := d.rest
	switch {
	case len(d.gone) == 0:
		return Judgement{Verdict: Duplicate, Reason: "what it takes back does not stand", Early: c.early()}, true
	case c.Record.Canceled, c.Record.Ends(c.Node.Deleting):
		return Judgement{Verdict: Duplicate, Reason: "what it takes back does not stand"}, true
	case !d.stands:
		rest.Canceled = true
	case c.Rules.waitsAgain(c.Record, rest, c.Now):
		rest.Phase = Waiting
	}
	return Judgement{Verdict: Accepted, Record: rest, Reason: "takes back what was announced"}, true
}

// early is what to remember of a withdrawal that might have come before what it takes back: a queue doesn't keep
// order, and a message whose receiver died is delivered again later.
func (c Case) early() Past {
	if c.Notice.Source != Queue || c.Past.Has(c.Notice) || Past(c.Record.Past).Has(c.Notice) {
		return nil
	}
	return Past{announcementOf(c.Notice)}
}

func isPast(c Case) (Judgement, bool) {
	return when(c.Past.Has(c.Notice), Duplicate, "was cancelled, or is over")
}

// undoes is what is remembered of a record that is being undone; ok is false if it is not.
func (c Case) undoes() (past Past, ok bool) {
	switch {
	case !c.Recorded, c.Record.Ends(c.Node.Deleting):
		return nil, false
	case c.Cancelling: // what the other source says of the same interruption is cancelled with it
		return PastOfCanceled(c.Record, c.Now), true
	}
	return PastOf(c.Record), c.Record.Canceled
}

func isTooLate(c Case) (Judgement, bool) {
	acts := c.Notice.Deadline
	if c.Notice.Action == ActionHibernate { // at once, however late the notice comes
		acts = c.Notice.Noticed
	}
	late := c.Notice.Kind != ScheduledEvent && !acts.IsZero() && c.Now.Sub(acts) > staleAfter
	// The metadata service speaks of the instance that asks it, so one that is to be terminated has had no
	// later life. It is judged by the node's own clock, which can be wrong by minutes.
	current := c.Notice.Source == IMDS && c.Notice.Action == ActionTerminate
	return when(late && !current && c.Node.Ready, Stale, "the deadline is minutes past, and the node is Ready")
}

// isOfAnEarlierRun: a state that the instance was in before its Node became Ready is about its
// previous run.
func isOfAnEarlierRun(c Case) (Judgement, bool) {
	return when(c.Notice.Kind == StateChange && c.Node.ReadySince.After(c.Notice.Noticed), Stale, "the node has become Ready since")
}

// isEndedByOthers: a state is no news about a node that somebody is already taking away in good
// order.
func isEndedByOthers(c Case) (Judgement, bool) {
	going := c.Node.Deleting || c.Node.ScalingDown
	return when(c.Notice.Kind == StateChange && !c.Recorded && going, Ignored, "somebody is ending the node already")
}

// rehearsesUnderWay: there is nothing to rehearse on a node that is interrupted, or whose
// rehearsal is still under way.
func rehearsesUnderWay(c Case) (Judgement, bool) {
	return when(c.Notice.Source == Rehearsal && c.Recorded, Ignored, "the node is interrupted already")
}

// returnsAnInterrupted: a node that is interrupted, or on its way back already, has a replacement of its own.
func returnsAnInterrupted(c Case) (Judgement, bool) {
	return when(c.Notice.Source == Return && c.Recorded, Ignored, "the node is interrupted already")
}

// endsARehearsal: EC2 has something to say about a node whose interruption is being rehearsed.
// If the instance is sure to end, or its window near, the drain goes on for real, with EC2's
// own deadline. Otherwise it is undone first: nothing that counts has begun.
func endsARehearsal(c Case) (Judgement, bool) {
	if !c.Recorded || !c.Record.Rehearsed() || c.Record.Phase == Released {
		return undecided()
	}
	rec := c.first(c.Record.Ours, c.Record.Past).Record
	switch {
	case !rec.Kind.Certain() && !c.Rules.Due(rec, c.Now):
		rec.Phase = Waiting
	case c.Record.Phase == Replacing || c.Record.Phase == Draining:
		rec.Phase, rec.Pods = c.Record.Phase, c.Record.Pods
	}
	if rec.Phase != Waiting {
		rec.Replacement = c.Record.Replacement
	}
	return Judgement{Verdict: Accepted, Record: rec, Reason: "ends a rehearsal"}, true
}

// meetsAnUndo: the notice comes while its Node is being undone. What was withdrawn or cancelled does not
// stand alongside it. A replacement that was cancelled is of use if the node ends after all.
func meetsAnUndo(c Case) (Judgement, bool) {
	past, ok := c.undoes()
	if !ok {
		return undecided()
	}
	if past.Has(c.Notice) {
		return Judgement{Verdict: Duplicate, Reason: "was taken back"}, true
	}
	j := c.first(c.Record.Ours, past)
	j.Record.Hooks = append(j.Record.Hooks, c.Record.Hooks...)
	if c.Cancelling && j.Record.Phase != Waiting {
		j.Record.Replacement = c.Record.Replacement
	}
	return j, true
}

// isOfTheNextRun: the notice is about the next run of an instance that has come back, and
// arrives before the Node is Ready, or before anybody has undone the last one. It must not be
// taken for the same interruption and undone with it.
func isOfTheNextRun(c Case) (Judgement, bool) {
	if !c.Recorded || !c.Notice.ofNextRun(c.Record, c.Node.Boot, c.Node.ReadySince) {
		return undecided()
	}
	rest, stands := c.Rules.NotYet(c.Record, c.Now)
	if !stands {
		return c.first(c.Record.Ours, PastOf(c.Record)), true
	}
	return c.merge(rest.Undone()), true
}

func isTheFirst(c Case) (Judgement, bool) {
	if c.Recorded && !c.Notice.supersedes(c.Record) {
		return undecided()
	}
	return c.first(c.Record.Ours, c.Record.Past), true
}

// first is the record of an interruption that begins. What we set on the Node is still ours,
// whatever we set it for: it was not there before.
func (c Case) first(ours []string, past Past) Judgement {
	rec := NewRecord(c.Notice)
	rec.Ours, rec.Past = ours, past
	switch {
	case c.Rules.waits(rec, c.Now):
		rec.Phase = Waiting
	case rec.Kind.Certain() && c.Now.Sub(rec.Received) > recordedLate:
		rec.Begun = c.Now.UTC()
	}
	return Judgement{Verdict: Accepted, Record: rec, Reason: "new"}
}

// merge adds the notice to what stands.
func (c Case) merge(old Record) Judgement {
	rec, changed := old.Merge(c.Notice)
	if !changed {
		return Judgement{Verdict: Duplicate, Reason: "says nothing new"}
	}
	state := c.Notice.Kind == StateChange
	switch {
	case state && c.endsAsExpected(old, rec):
		return Judgement{Verdict: Duplicate, Reason: "the drain is over, and the instance ends as expected"}
	case c.Rules.waitsAgain(old, rec, c.Now):
		rec.Phase = Waiting
	case state && old.Phase.Over(): // what could be moved has been
	case rec.Kind != old.Kind && old.Phase.Over() && old.Phase != Released:
		rec.Phase = Noticed // cordoned only until now, or drained in part
	case old.Phase == Waiting && !c.Rules.waits(rec, c.Now):
		rec.Phase = Noticed
	}
	return Judgement{Verdict: Accepted, Record: rec, Reason: "adds to what stands"}
}

// endsAsExpected reports whether a state of the instance is no news: the drain is over, as
// usual when an interrupted instance ends, or somebody is deleting the Node, as usual when one
// is scaled down. It is news that an instance is gone for good, as its volumes may still be
// attached. So is that it will not come back.
func (c Case) endsAsExpected(old, merged Record) bool {
	if !old.Phase.Over() {
		return false
	}
	return c.Node.Deleting || !merged.Terminated() && merged.ComesBack() == old.ComesBack()
}
