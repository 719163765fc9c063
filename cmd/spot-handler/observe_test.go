package main

import (
	"strings"
	"testing"
	"time"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/handler/interruption"
)

// seen is an observer that has seen this much.
type seen observe.Recording

func (s seen) View(time.Time, int, int) []string         { return []string{"a view"} }
func (s seen) Recording(now time.Time) observe.Recording { s.To = now; return observe.Recording(s) }

// Where nothing can be redrawn, such as in the log of a CI job, each change is a line, once.
func TestEachChangeIsALine(t *testing.T) {
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	node := observe.Node{
		Name: "spot-1", Kind: interruption.SpotInterruption, Noticed: began, Phases: []observe.PhaseAt{{Phase: interruption.Draining, At: at(1)}},
	}
	var out strings.Builder
	shown := picture{console.NewScreen(&out), map[string]bool{}}
	shown.show(seen{Nodes: []observe.Node{node}}, at(2))
	shown.show(seen{Nodes: []observe.Node{node}}, at(3))
	drained := at(4)
	node.Drained = &drained
	shown.show(seen{Nodes: []observe.Node{node}}, at(5))
	want := "    0.0 s  node  noticed: spot-interruption\n    1.0 s  node  Draining\n    4.0 s  node  every pod has left\n"
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", &out, want)
	}
}
