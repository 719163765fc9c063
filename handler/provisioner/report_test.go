package provisioner

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"spot-handler/handler/interruption"
)

// A node's choice is one line, also where its backend first has to look the node up,
// and what is wrong with the cluster is one line for all nodes.
func TestOneLinePerNode(t *testing.T) {
	b := newBench(t, "")
	rec := interruption.Record{Instance: "i-1"}
	b.asg.answer = interruption.Replacement{State: StateRequested}
	b.ask("node-1", &rec)
	b.wantLog(0)
	b.asg.answer.Name = "group-1"
	for _, state := range []string{StateRequested, StateLaunched, StateReady, StateReady} {
		b.asg.answer.State = state
		b.ask("node-1", &rec)
	}
	b.wantLog(1, `"backend":"asg"`, `"node":"node-1"`, `"replacement":"group-1"`)
	for _, result := range []string{"requested", "launched", "ready"} {
		b.wantCount(ASG, result, 1)
	}
	b.log.Reset()
	b.karpenter.made = true
	for i := range 20 {
		b.ask(fmt.Sprint("node-", i+2), &interruption.Record{Instance: fmt.Sprint("i-", i+2)})
	}
	b.wantLog(1, "not mine")
	b.wantCount(Karpenter, "unsupported", 20)
}

// Every pool that came to nothing counts as failed, once.
func TestTriedPoolsCount(t *testing.T) {
	b := newBench(t, Karpenter)
	rec := interruption.Record{Instance: "i-1"}
	for _, r := range []interruption.Replacement{
		{State: StateRequested, Name: "a-1", Pool: "a"},
		{State: StateRequested, Name: "b-1", Pool: "b", Tried: "a"},
		{State: StateLaunched, Name: "b-1", Pool: "b", Tried: "a"},
		{State: StateFailed, Name: "b-1", Pool: "b", Tried: "a,b", Reason: "gone"},
		{State: StateFailed, Name: "b-1", Pool: "b", Tried: "a,b", Reason: "gone"},
	} {
		b.karpenter.answer = r
		b.ask("node-1", &rec)
	}
	b.wantCount(Karpenter, "failed", 2)
	b.wantCount(Karpenter, "requested", 2)
	b.wantLog(1)
}

// A replacement that was seen as requested is timed until it is Ready. If its node was forgotten meanwhile, as the
// record went, the time isn't known.
func TestReadyIsTimedFromTheFirstAnswer(t *testing.T) {
	for forgotten, want := range map[bool]uint64{false: 1, true: 0} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, ASG)
			rec := interruption.Record{Instance: "i-1"}
			b.asg.answer = interruption.Replacement{State: StateRequested}
			b.ask("node-1", &rec)
			time.Sleep(40 * time.Second)
			if forgotten {
				b.Forget("node-1")
			}
			b.asg.answer = interruption.Replacement{State: StateReady, Name: "i-2"}
			b.ask("node-1", &rec)
			families, err := b.registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if f.GetName() != "spot_handler_replacement_ready_seconds" {
					continue
				}
				for _, m := range f.GetMetric() {
					h := m.GetHistogram()
					if m.GetLabel()[0].GetValue() == ASG && (h.GetSampleCount() != want || h.GetSampleSum() != 40*float64(want)) {
						t.Errorf("forgotten: %t: %v, want %d of 40 s", forgotten, h, want)
					}
				}
			}
		})
	}
}

// What is forbidden on each node is one cause, said once.
func TestCause(t *testing.T) {
	for text, want := range map[string]string{
		`nodeclaims.karpenter.sh "batch-fallback-7" is forbidden: exceeded quota`: "exceeded quota",
		"connection refused": "connection refused",
	} {
		if got := Cause(errors.New(text)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A text is said once, until there are more than a thousand of them. Then all are said again, and again up to a
// thousand are remembered.
func TestOnce(t *testing.T) {
	var o Once
	for i := range 1000 {
		if text := fmt.Sprint(i); !o.First(text) || o.First(text) {
			t.Fatalf("%s is not said once", text)
		}
	}
	if !o.First("another") || !o.First("0") {
		t.Error("all are remembered")
	}
	for i := range 3000 {
		o.First(fmt.Sprint("text ", i))
	}
	remembered := 0
	o.said.Range(func(any, any) bool { remembered++; return true })
	if remembered < 900 || remembered > 1000 {
		t.Errorf("%d of 3000 texts are remembered, want up to a thousand", remembered)
	}
}
