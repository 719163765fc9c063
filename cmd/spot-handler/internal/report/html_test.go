package report

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/cmd/spot-handler/internal/observe"
)

func render(t *testing.T, r Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// hostile is what anybody can write into a reason, and what no name can hold, but who knows.
const hostile = `"><script>alert(1)</script><img src=x onerror=alert(2)>'</title></style>&quot;`

// hostileReport has it wherever a text comes from the cluster.
func hostileReport() Report {
	r := one()
	n := &r.Nodes[0]
	n.Name, n.Pool, n.Action = n.Name+hostile, hostile, hostile
	n.Replacement.Name, n.Replacement.Reason, n.Replacement.Pool, n.Replacement.State = hostile, hostile, hostile, hostile
	p := &n.Pods[0]
	p.Name, p.Workload, p.Namespace = hostile, hostile, hostile
	p.Steps[0].For = hostile
	p.Refusal = &observe.Refusal{From: after(3), Times: 2, Reason: hostile}
	r.Workloads[0].Name, r.Budgets[0].Name, r.Unread = hostile, hostile, []string{hostile}
	f := forecastOf()
	f.Pods[2].Reason, f.Assumptions.Boot.From, f.Pods[0].Name = hostile, hostile, hostile
	return Of(r, f)
}

// Texts of the cluster are texts: they make no element, and leave no attribute.
func TestPageIsSafe(t *testing.T) {
	text := render(t, hostileReport())
	for _, never := range []string{"<script", "<img", "onerror=alert(2)>'</title>"} {
		if strings.Contains(text, never) {
			t.Errorf("the page has %q", never)
		}
	}
	if n := strings.Count(text, "alert(1)"); n < 10 {
		t.Errorf("the text is there %d times: did the test reach the page?", n)
	}
	for _, never := range []string{"<link", "src=", "http://", "https://", "@import", "ZgotmplZ"} {
		if strings.Contains(render(t, Of(one(), forecastOf())), never) {
			t.Errorf("the page refers to something outside itself, or cannot show something: %q", never)
		}
	}
}

// Every picture says in words what it shows, and elements are closed in order.
func TestPageIsAccessible(t *testing.T) {
	rec, f := massInterruption()
	for name, r := range map[string]Report{"one": Of(one(), forecastOf()), "mass interruption": Of(rec, f), "nothing": Of(observe.Recording{To: time.Now()}, nil)} {
		text := render(t, r)
		for svg := range strings.SplitSeq(text, "<svg ") {
			if head, _, ok := strings.Cut(svg, "</svg>"); ok && !strings.Contains(head, `aria-hidden="true"`) &&
				!(strings.Contains(head, `role="img"`) && strings.Contains(head, "<title") && !strings.Contains(head, "<title></title>")) {
				t.Errorf("%s: a picture without a title: %.200s", name, head)
			}
		}
		d := xml.NewDecoder(strings.NewReader(text))
		d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

// A rehearsal is called one, unless EC2 came in between.
func TestTitle(t *testing.T) {
	r := one()
	r.Nodes = append(r.Nodes, r.Nodes[0])
	for _, tt := range []struct {
		rehearsed [2]bool
		want      string
	}{
		{[2]bool{false, false}, "<h1>Interruption of 2 nodes</h1>"},
		{[2]bool{true, true}, "<h1>Rehearsal of 2 nodes</h1>"},
		{[2]bool{true, false}, "<h1>Interruption of 2 nodes</h1>"},
	} {
		r.Nodes[0].Rehearsal, r.Nodes[1].Rehearsal = tt.rehearsed[0], tt.rehearsed[1]
		if !strings.Contains(render(t, Of(r, nil)), tt.want) {
			t.Errorf("%v: no %s", tt.rehearsed, tt.want)
		}
	}
}

func TestAxis(t *testing.T) {
	for _, tt := range []struct {
		name     string
		to       float64
		deadline float64 // 0: none
		want     string
	}{
		{"a spot interruption that is over soon", 42, 120, "0 s 30 s 60 s 90 s 120 s"},
		{"without a deadline", 42, 0, "0 s 10 s 20 s 30 s 40 s"},
		{"moments", 1, 0, "0 s 2 s 4 s 6 s 8 s 10 s"},
		{"a window days ahead", 300, 500000, "0 min 1 min 2 min 3 min 4 min 5 min"},
		{"hours", 4 * 3600, 0, "0 min 60 min 120 min 180 min 240 min"},
		{"half an hour", 25 * 60, 0, "0 min 5 min 10 min 15 min 20 min 25 min"},
		{"an hour and a half", 90 * 60, 0, "0 min 20 min 40 min 60 min 80 min"},
		{"more than the longest steps hold", 40 * 3600, 0, "0 min 360 min 720 min 1080 min 1440 min 1800 min 2160 min"},
	} {
		r := observe.Recording{To: after(tt.to), Nodes: []observe.Node{{Noticed: noticed}}}
		if tt.deadline > 0 {
			r.Nodes[0].Deadline = at(tt.deadline)
		}
		var got []string
		for _, tick := range axisOf(r).ticks() {
			got = append(got, tick.Text)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, strings.Join(got, " "), tt.want)
		}
	}
}

// A bar holds until the next sample, is as high as its share of the pods, and shows what is missing.
func TestReadyPods(t *testing.T) {
	r := one()
	r.To = after(100)
	w := observe.Workload{
		Namespace: "default", Name: "deployment/web", Fewest: 2, Missing: 2,
		Samples: []observe.Sample{{At: noticed, Ready: 4, Desired: 4}, {At: after(50), Ready: 2, Desired: 4}},
	}
	v := axis{begin: noticed, whole: 100 * time.Second}.workload(r, w, WorkloadScore{})
	want := []bar{
		{"0.00", "2.00", "500.00", "22.00", "ready", "4 of 4 ready from 0.0 s"},
		{"500.00", "13.00", "500.00", "11.00", "missed", "2 of 4 ready from 50.0 s"},
	}
	if diff := cmp.Diff(want, v.Track.Bars); diff != "" {
		t.Errorf("bars (-want +got):\n%s", diff)
	}
	if want := "4 of 4 pods were ready at first, 2 at the fewest, 2 at the end."; v.Track.Text != want || v.Needed != "5" {
		t.Errorf("%s, %s needed; want %s, and 5", v.Track.Text, v.Needed, want)
	}
}

// A workload of one pod fills the height of its track.
func TestHeightOfOnePod(t *testing.T) {
	r := one()
	r.Workloads[0].Samples = []observe.Sample{{At: after(0), Ready: 1, Desired: 1}}
	view := axisOf(r).workload(r, r.Workloads[0], WorkloadScore{})
	if got := view.Track.Bars[0].Height; got != "22.00" {
		t.Errorf("a bar as high as %s, want 22 of 24", got)
	}
}
