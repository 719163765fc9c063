package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
)

// readyPodsFile is what e2e/plots draws for the front page. It is written when all of it has been measured.
const readyPodsFile = "../plots/ready-pods.json"

// chart is what e2e/plots draws: counts over time.
type chart struct {
	Title, Subtitle, Description string

	X, Y  axis
	Base  float64
	Marks []mark
	Lines []line
}

type axis struct {
	Label          string
	From, To, Step float64
}

type mark struct {
	At   float64
	Text string
}

type line struct {
	Name, Figure string
	Strong       bool
	Nodes        bool // it counts nodes, and lacks none
	Points       []point
}

// point is a second, and how many pods were ready from then on.
type point [2]float64

// readyPods is how many pods of the service were ready, for each of the ways.
func readyPods(results []outage) chart {
	c := chart{
		Title: fmt.Sprintf("One of four nodes is lost: ready pods of a service of %d", servicePods),
		Subtitle: fmt.Sprintf("%d pods run on it. A new node boots in %.0f s, a pod is ready after %.0f s; the disruption budget lets 25%% go.",
			servicePods/serviceNodes, bootTime.Seconds(), readyTime.Seconds()),
		X:    axis{Label: "seconds after EC2’s notice", From: -6, To: noticeTime.Seconds() + 6, Step: 20},
		Base: servicePods,
		Marks: []mark{
			{0, "notice"},
			{bootTime.Seconds(), "first new node is up"},
			{noticeTime.Seconds(), "EC2 takes the node"},
		},
	}
	least, most := float64(servicePods), float64(servicePods)
	var captions []string
	for i, r := range results {
		l := line{
			Name:   ways[i].label,
			Figure: fmt.Sprintf("%.0f pod-seconds unavailable", r.podSeconds),
			Strong: ways[i].name == "surge",
			Points: []point{{c.X.From, servicePods}},
		}
		for _, at := range r.ready {
			least, most = min(least, at[1]), max(most, at[1])
			if at[0] <= noticeTime.Seconds() {
				l.Points = append(l.Points, point{math.Round(10*at[0]) / 10, at[1]})
			}
		}
		l.Points = append(l.Points, point{noticeTime.Seconds(), l.Points[len(l.Points)-1][1]})
		c.Lines = append(c.Lines, l)
		captions = append(captions, fmt.Sprintf("%s: never fewer than %d ready, %s", l.Name, r.fewest, l.Figure))
	}
	c.Description = strings.Join(captions, ". ") + "."
	c.Y = axis{From: least - 5, To: most + 3, Step: 4}
	c.Y.Label = fmt.Sprintf("ready pods (axis from %.0f)", c.Y.From)
	return c
}

func (c chart) write(file string) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// TestReadyPods has a service that lost pods in some of the ways.
func TestReadyPods(t *testing.T) {
	results := []outage{
		{podSeconds: 360, fewest: 21, ready: []point{{0, 28}, {2.04, 21}, {53, 28}}},
		{podSeconds: 350, fewest: 21, ready: []point{{0, 28}, {2.04, 21}, {52, 28}}},
		{podSeconds: 70, fewest: 21, ready: []point{{0, 28}, {41, 21}, {51, 28}, {121, 27}}},
		{podSeconds: 0, fewest: 28, ready: []point{{0, 28}, {50, 35}, {51, 28}}},
	}
	c := readyPods(results)
	for i, l := range c.Lines {
		if last := l.Points[len(l.Points)-1]; last != (point{120, 28}) {
			t.Errorf("line %d ends at %v", i, last)
		}
	}
	if got := c.Lines[0].Points[2]; got != (point{2, 21}) {
		t.Errorf("the third point of the first line is %v", got)
	}
	if c.Y.From != 16 || c.Y.To != 38 || !strings.Contains(c.Y.Label, "from 16") {
		t.Errorf("the axis of pods is %+v", c.Y)
	}
}
