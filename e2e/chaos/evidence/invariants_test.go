package evidence

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"spot-handler/handler/interruption"
)

// start is when the round of these tests begins.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

func seconds(n int) *time.Duration { d := time.Duration(n) * time.Second; return &d }

// by is a request of the first replica's first process, which leads, half a second after it
// was sent.
func by(sent float64, q Request) Request {
	q.Replica, q.Process, q.User, q.Sent, q.At, q.Done = "1", "1.1", "ours", at(sent), at(sent+.5), at(sent+.6)
	if q.Code == 0 {
		q.Code = 200
	}
	return q
}

// byOther is one of the second replica.
func byOther(sent float64, q Request) Request {
	q = by(sent, q)
	q.Replica, q.Process = "2", "2.1"
	return q
}

var renewal = Request{Verb: "update", Resource: "leases", Namespace: "spot-handler", Name: "spot-handler"}

func eviction(code int, grace *time.Duration) Request {
	return Request{Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "n", Name: "p", UID: "u", Code: code, Grace: grace, Budget: code == 429}
}

var deletion = Request{Verb: "delete", Resource: "pods", Namespace: "n", Name: "p", UID: "u", Grace: seconds(10)}

// good is a round in which a node is lost as it should be: 60 s are left, its pod asks for 10.
func good() Round {
	record := &interruption.Record{Kind: interruption.SpotInterruption, Phase: interruption.Noticed, Instance: "i"}
	return Round{
		Margin:   10 * time.Second,
		Losses:   []Loss{{Node: "node", Instance: "i", Announced: []Announcement{{interruption.SpotInterruption, at(10), at(70)}}, Gone: at(40)}},
		Messages: []Message{{ID: "m", Node: "node", Instance: "i", Kind: interruption.SpotInterruption, Deleted: at(13)}},
		Pods:     []Pod{{UID: "u", Namespace: "n", Name: "p", Node: "node", Grace: 10 * time.Second, Bound: at(0), Gone: at(32)}},
		Requests: []Request{
			by(1, renewal),
			by(11, Request{Verb: "patch", Resource: "nodes", Name: "node", Record: record}),
			by(12, Request{Verb: "create", Resource: "nodeclaims"}),
			by(29, eviction(201, nil)),
		},
		Claims: []Claim{{Name: "c", Replaces: "i", Made: at(12)}},
		Starts: 1,
	}
}

// eviction's place in good.
const evicted = 3

func TestNothingIsWrongWithAGoodRound(t *testing.T) {
	if broken := Check(good()); len(broken) > 0 {
		t.Errorf("broken: %v", broken)
	}
	if f := good().Fates(); f != (Fates{Whole: 1, Due: 1}) {
		t.Errorf("fates %+v", f)
	}
}

// lateAndAsking: the pod asks for a notice, and leaves when there was time for it.
func lateAndAsking(r *Round) {
	r.Pods[0].Asks, r.Pods[0].Gone, r.Losses[0].Gone = true, at(48), at(60)
	r.Requests[evicted] = by(45, eviction(201, nil))
}

// Each invariant can fail, and each excuse counts only where it is one. What is empty as a
// reason holds.
func TestInvariants(t *testing.T) {
	ended := func(r *Round, q Request) { r.Requests[evicted] = q }
	for name, tt := range map[string]struct {
		change func(*Round)
		broken string // part of what is said
	}{
		"message deleted without a record": {func(r *Round) { r.Requests[1].Record = nil }, "deleted at 00:00:13.000 without a record"},
		"message deleted before the record": {func(r *Round) {
			r.Messages[0].Deleted = at(11.2)
		}, "without a record"},
		"record that could not be written": {func(r *Round) { r.Requests[1].Code = 409 }, "without a record"},
		"record of a weaker kind": {func(r *Round) {
			r.Requests[1].Record = &interruption.Record{Kind: interruption.RebalanceRecommendation, Phase: interruption.Noticed}
		}, "without a record"},
		"record of a stronger kind": {func(r *Round) { r.Messages[0].Kind = interruption.RebalanceRecommendation }, ""},
		"another node's record":     {func(r *Round) { r.Requests[1].Name = "other" }, "without a record"},
		"message about a node that is gone": {func(r *Round) {
			r.Messages = append(r.Messages, Message{ID: "late", Node: "node", Kind: interruption.StateChange, Deleted: at(50)})
		}, ""},
		"message about a node that is not gone yet": {func(r *Round) {
			r.Messages = append(r.Messages, Message{ID: "late", Node: "node", Kind: interruption.StateChange, Deleted: at(30)})
		}, "message late"},

		"pod of a node that stays": {func(r *Round) {
			r.Elsewhere = []Pod{{UID: "v", Namespace: "n", Name: "q", Node: "other"}}
			q := eviction(201, nil)
			q.UID, q.Name = "v", "q"
			r.Requests = append(r.Requests, by(30, q))
		}, "pod n/q on other: create eviction"},
		"not notified, and there was no time": {func(r *Round) { r.Pods[0].Asks = true }, ""},
		"not notified":                        {lateAndAsking, "had not been notified"},
		"notified": {func(r *Round) {
			lateAndAsking(r)
			r.Notices = []Notice{{At: at(12), Type: "notice", Namespace: "n", Name: "p", Node: "node"}}
		}, ""},
		"notified of another node": {func(r *Round) {
			r.Pods[0].Asks = true
			r.Notices = []Notice{{At: at(12), Type: "notice", Namespace: "n", Name: "p", Node: "other"}}
		}, "notice of node other went to pod n/p on node"},
		"notified on a node that stays": {func(r *Round) {
			r.Elsewhere = []Pod{{UID: "v", Namespace: "n", Name: "q", Node: "other", Asks: true}}
			r.Notices = []Notice{{At: at(12), Type: "notice", Namespace: "n", Name: "q", Node: "node"}}
		}, "went to pod n/q on other"},

		"another process drains": {func(r *Round) { ended(r, byOther(29, eviction(201, nil))) }, `process 2.1 sent create pods/eviction p at 00:00:29.000, while "1.1" had the lease`},
		"nobody holds the lease": {func(r *Round) { r.Requests[0].Code = 409 }, `while "" had the lease`},
		"the lease is another's by then": {func(r *Round) {
			r.Requests = slices.Insert(r.Requests, evicted, byOther(20, renewal))
		}, "process 1.1 sent"},
		"it has just become another's": {func(r *Round) {
			r.Requests = slices.Insert(r.Requests, evicted, byOther(28, renewal))
		}, ""},
		"the process was asleep when the lease ran out": {func(r *Round) {
			r.Requests = slices.Insert(r.Requests, evicted, byOther(20, renewal))
			r.Spans = []Span{{Replica: "1", Paused: true, From: at(13), To: at(28)}}
		}, ""},
		"it slept before": {func(r *Round) {
			r.Requests = slices.Insert(r.Requests, evicted, byOther(20, renewal))
			r.Spans = []Span{{Replica: "1", Paused: true, From: at(13), To: at(18)}}
		}, "process 1.1 sent"},
		"it has been awake for a while": {func(r *Round) {
			r.Requests = slices.Insert(r.Requests, evicted, byOther(20, renewal))
			r.Spans = []Span{{Replica: "1", Paused: true, From: at(13), To: at(25)}}
		}, "process 1.1 sent"},
		"another one was asleep": {func(r *Round) {
			r.Requests = slices.Insert(r.Requests, evicted, byOther(20, renewal))
			r.Spans = []Span{{Replica: "2", Paused: true, From: at(13), To: at(28)}}
		}, "process 1.1 sent"},

		"too little grace":       {func(r *Round) { ended(r, by(57, eviction(201, seconds(3)))) }, "had 3s of its 10s"},
		"almost all of it":       {func(r *Round) { ended(r, by(29, eviction(201, seconds(8)))) }, ""},
		"as much as it asks for": {func(r *Round) { ended(r, by(29, eviction(201, seconds(10)))) }, ""},
		"too little grace, after its budget refused": {func(r *Round) {
			ended(r, by(45, eviction(429, nil)))
			r.Requests = append(r.Requests, by(55, eviction(201, seconds(3))))
		}, ""},
		"too little grace, long after its budget refused": {func(r *Round) {
			ended(r, by(35, eviction(429, nil)))
			r.Requests = append(r.Requests, by(55, eviction(201, seconds(3))))
		}, "had 3s of its 10s"},
		"too little grace, after a fault to the last": {func(r *Round) {
			ended(r, by(55, eviction(201, seconds(3))))
			r.Spans = []Span{{From: at(20), To: at(40)}}
		}, ""},
		"too little grace, after a fault that left time": {func(r *Round) {
			ended(r, by(55, eviction(201, seconds(3))))
			r.Spans = []Span{{From: at(20), To: at(30)}}
		}, "had 3s of its 10s"},
		"too little grace, and the queue failed after the record": {func(r *Round) {
			ended(r, by(55, eviction(201, seconds(3))))
			r.Spans = []Span{{From: at(20), To: at(40), Queue: true}}
		}, "had 3s of its 10s"},
		"too little grace, and the queue failed until the record": {func(r *Round) {
			r.Requests[1] = by(40, Request{Verb: "patch", Resource: "nodes", Name: "node", Record: r.Requests[1].Record})
			r.Messages[0].Deleted = at(41)
			ended(r, by(55, eviction(201, seconds(3))))
			r.Spans = []Span{{From: at(9), To: at(41), Queue: true}}
		}, ""},
		"too little grace, as there was no time": {func(r *Round) {
			ended(r, by(29, eviction(201, seconds(3))))
			r.Losses[0].Announced[0].Deadline = at(44)
		}, ""},
		"too little grace without a deadline": {func(r *Round) {
			ended(r, by(29, eviction(201, seconds(3))))
			r.Losses[0].Announced[0].Deadline = time.Time{}
		}, "had 3s of its 10s"},
		"left": {func(r *Round) { ended(r, by(29, Request{})); r.Pods[0].Gone = time.Time{} }, "was left on node"},
		"left, as it came after the cordon": {func(r *Round) {
			ended(r, by(29, Request{}))
			r.Pods[0].Bound, r.Pods[0].Tolerates = at(15), true
		}, ""},
		"left, though it tolerates everything": {func(r *Round) {
			ended(r, by(29, Request{}))
			r.Pods[0].Tolerates = true
		}, "was left on node"},
		"left, and came after the cordon": {func(r *Round) {
			ended(r, by(29, Request{}))
			r.Pods[0].Bound = at(15)
		}, "was left on node"},
		"left to Karpenter": {func(r *Round) {
			ended(r, Request{At: at(39), User: karpenter, Verb: "delete", Resource: "pods", Namespace: "n", Name: "p", Code: 200})
		}, "was left on node"},
		"ended with its node": {func(r *Round) {
			ended(r, Request{At: at(41), User: "kube-controller-manager", Verb: "delete", Resource: "pods", Namespace: "n", Name: "p", Code: 200})
		}, "was left on node"},
		"ended by its owner": {func(r *Round) {
			ended(r, Request{At: at(39), User: "kube-controller-manager", Verb: "delete", Resource: "pods", Namespace: "n", Name: "p", Code: 200})
		}, ""},
		"left as its budget refused": {func(r *Round) { ended(r, by(60, eviction(429, nil))); r.Pods[0].Gone = time.Time{} }, ""},
		"left on a node that was cancelled": {func(r *Round) {
			ended(r, by(29, Request{}))
			r.Pods[0].Gone, r.Losses[0].Canceled = time.Time{}, at(15)
		}, ""},
		"left after a recommendation": {func(r *Round) {
			ended(r, by(29, Request{}))
			r.Pods[0].Gone, r.Losses[0].Announced[0].Deadline = time.Time{}, time.Time{}
		}, ""},
		"evicted by a request that was broken off": {func(r *Round) { ended(r, by(29, eviction(500, nil))) }, ""},
		"another pod of that name": {func(r *Round) {
			q := by(29, eviction(201, nil))
			q.UID = "before"
			ended(r, q)
			r.Pods[0].Gone = at(80)
		}, "was left on node"},

		"less grace than there was time for, excused or not": {func(r *Round) {
			ended(r, by(45, eviction(429, nil)))
			r.Requests = append(r.Requests, by(53, eviction(201, seconds(4))))
		}, "with a grace period of 4s, and 17s of the 10s"},
		"more grace than there was time for": {func(r *Round) { ended(r, by(65, eviction(201, nil))) }, "with a grace period of 10s, and 5s were left"},
		"more grace than there was time for, on a slow link": {func(r *Round) {
			ended(r, by(65, eviction(201, nil)))
			r.Requests[evicted].At = at(68)
			r.Spans = []Span{{From: at(65), To: at(68)}}
		}, ""},
		"evicted again": {func(r *Round) { r.Requests = append(r.Requests, by(35, eviction(201, nil))) }, "again, after 00:00:29.500"},
		"evicted again, as the answer was lost": {func(r *Round) {
			r.Requests = append(r.Requests, by(35, eviction(201, nil)))
			r.Spans = []Span{{From: at(29), To: at(30)}}
		}, ""},
		"deleted too early": {func(r *Round) { ended(r, by(29, deletion)) }, "past its budget, and 41s were left"},
		"deleted in time":   {func(r *Round) { ended(r, by(49, deletion)) }, ""},
		"deleted, as one more than its Deployment asks for": {func(r *Round) {
			q := by(29, deletion)
			q.Grace = nil
			ended(r, q)
			r.Requests = slices.Insert(r.Requests, evicted, by(25, Request{Verb: "patch", Resource: "pods", Namespace: "n", Name: "p"}))
		}, ""},
		"deleted, and never surged": {func(r *Round) {
			q := by(29, deletion)
			q.Grace = nil
			ended(r, q)
		}, "past its budget, and 41s were left"},
		"deleted, as an eviction was broken off": {func(r *Round) {
			ended(r, by(29, eviction(500, nil)))
			r.Requests = append(r.Requests, by(31, deletion))
		}, ""},

		"not settled": {func(r *Round) { r.Unsettled = []string{"node is cordoned"} }, "node is cordoned"},

		"two replacements": {func(r *Round) {
			r.Claims = append(r.Claims, Claim{Name: "d", Replaces: "i", Made: at(20)})
		}, "c and d replace node at the same time"},
		"more replacements than announcements": {func(r *Round) {
			r.Claims[0].Going, r.Claims[0].Launched = at(15), true
			r.Claims = append(r.Claims, Claim{Name: "d", Replaces: "i", Made: at(20)})
		}, "2 replacements of node for 1 announcements"},
		"another pool, as the first has no capacity": {func(r *Round) {
			r.Claims[0].Going = at(15)
			r.Claims = append(r.Claims, Claim{Name: "d", Replaces: "i", Made: at(20)})
		}, ""},
		"replacement of nobody": {func(r *Round) { r.Claims[0].Replaces = "other" }, "c replaces other, of which nothing was announced"},

		"too many requests": {func(r *Round) {
			for i := range r.Allowed() {
				r.Requests = append(r.Requests, by(float64(i), Request{Verb: "get", Resource: "nodes"}))
			}
		}, "want 61 at most for 1 losses, 1 pods, 1 starts, 0 faults"},
		"many refusals by a budget, and renewals": {func(r *Round) {
			for i := range r.Allowed() {
				r.Requests = append(r.Requests, by(20, eviction(429, nil)), by(float64(i), renewal))
			}
		}, ""},
		"forbidden": {func(r *Round) { r.Requests[1].Forbidden = true }, "patch nodes/ node at"},
		"ended":     {func(r *Round) { r.Unexpected = []string{"replica 1 ended with code 2"} }, "ended with code 2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := good()
			tt.change(&r)
			said := fmt.Sprint(Check(r))
			if tt.broken == "" && len(Check(r)) > 0 || !strings.Contains(said, tt.broken) {
				t.Errorf("broken: %s; want %q", said, tt.broken)
			}
			if tt.broken != "" && len(Check(r)) != 1 {
				t.Errorf("broken: %s; want one invariant", said)
			}
		})
	}
}
