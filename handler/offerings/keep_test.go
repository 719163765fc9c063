package offerings

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// configMaps is an API of one ConfigMap, which counts what it is asked. It is for one goroutine at a time.
type configMaps struct {
	held          *corev1.ConfigMap
	reads, writes []time.Time
	err           error         // of every request
	hangs         time.Duration // every request
}

var _ ConfigMaps = (*configMaps)(nil)

func newConfigMaps(data map[string]string) *configMaps {
	return &configMaps{held: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ConfigMap}, Data: data}}
}

func (c *configMaps) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.ConfigMap, error) {
	c.reads = append(c.reads, time.Now())
	time.Sleep(c.hangs)
	if name != c.held.Name {
		return nil, errors.New("not found")
	}
	return c.held.DeepCopy(), c.err
}

func (c *configMaps) Patch(_ context.Context, name string, pt types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*corev1.ConfigMap, error) {
	time.Sleep(c.hangs)
	if c.err != nil {
		return nil, c.err
	}
	c.writes = append(c.writes, time.Now())
	if name != c.held.Name || pt != types.MergePatchType {
		return nil, errors.New("not found")
	}
	return c.held, json.Unmarshal(data, c.held) // merges the maps
}

// keep runs a memory until the function that it returns is called.
func keep(t *testing.T, api ConfigMaps, log io.Writer, standing ...*corev1.Node) (*Memory, func()) {
	ctx, stop := context.WithCancel(t.Context())
	m, done := New(), make(chan struct{})
	go func() {
		defer close(done)
		if err := m.Keep(ctx, api, func() []*corev1.Node { return standing }, zerolog.New(log)); err != nil {
			t.Error(err)
		}
	}()
	synctest.Wait()
	return m, func() { stop(); <-done }
}

func named(name string, node *corev1.Node) *corev1.Node {
	node.Name = name
	return node
}

// wantTally compares what is known of an offering in pool spot.
func (m *Memory) wantTally(t *testing.T, zone string, lost, hours float64) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fade()
	got := m.of[Loss{Offering{"m5.large", zone}, "spot"}]
	if got == nil || math.Abs(got.Lost-lost) > 0.06 || math.Abs(got.Hours-hours) > 0.02 {
		t.Errorf("zone %s: %+v, want %g lost and %g hours", zone, got, lost, hours)
	}
}

// A burst is one write, and what comes after it waits. The next process knows what was written, counts
// nothing twice that still stands on the Nodes, and goes on.
func TestMemorySurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newConfigMaps(nil)
		m, stop := keep(t, api, t.Output())
		type seen struct {
			node *corev1.Node
			rec  interruption.Record
		}
		var all []seen
		note := func(m *Memory, name, zone string, kind interruption.Kind) {
			s := seen{named(name, spotNode("m5.large", zone)), record(kind)}
			m.Note(s.node, s.rec)
			all = append(all, s)
		}
		began := time.Now()
		for i := range 40 {
			note(m, fmt.Sprint("node-", i), "a", interruption.SpotInterruption)
			m.Note(all[0].node, all[0].rec) // its Node is visited again
			time.Sleep(100 * time.Millisecond)
		}
		note(m, "risky", "b", interruption.RebalanceRecommendation)
		time.Sleep(10 * time.Second)
		if len(api.writes) != 1 || api.writes[0].Sub(began) != burst {
			t.Errorf("writes at %v after a burst from %v on, want one after %s", api.writes, began, burst)
		}
		note(m, "late", "c", interruption.SpotInterruption)
		time.Sleep(2 * pause)
		if len(api.writes) != 2 || api.writes[1].Sub(api.writes[0]) != pause || len(api.reads) != 1 {
			t.Errorf("writes at %v, want the second %s after the first; reads at %v, want one", api.writes, pause, api.reads)
		}
		m.wantTally(t, "a", 40, 0)
		m.wantTally(t, "b", 0, 0) // EC2 has not taken it
		lost := m.Lost()
		stop()

		next, stop := keep(t, api, t.Output())
		if got := next.Lost(); len(got) != 3 || !slices.Equal(got, lost) {
			t.Errorf("the next process knows of %v, want %v", got, lost)
		}
		was, _ := m.LastLosses(time.Time{})
		if last, known := next.LastLosses(time.Time{}); !known || !maps.EqualFunc(was, last, time.Time.Equal) || time.Since(next.lastLoss()) > 3*pause {
			t.Errorf("the next process knows of the losses %v: %t; want %v", last, known, was)
		}
		if last, known := New().LastLosses(time.Time{}); known || len(last) > 0 {
			t.Errorf("what is not read counts as known: %t", known)
		}
		for _, s := range all {
			next.Note(s.node, s.rec)
		}
		note(next, "another", "a", interruption.SpotInterruption)
		next.wantTally(t, "a", 41, 0)
		next.wantTally(t, "c", 1, 0)
		time.Sleep(Lately)
		if got := next.Lost(); len(got) != 0 {
			t.Errorf("lost of late: %v, want nothing any more", got)
		}
		time.Sleep(halfLife - Lately)
		next.wantTally(t, "a", 20.5, 0)
		stop()
	})
}

// A leader that cannot read at first what the one before has counted counts nothing until it can, and then
// what stands on the Nodes and was not counted.
func TestNothingIsCountedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newConfigMaps(nil)
		m, stop := keep(t, api, t.Output())
		rec := record(interruption.SpotInterruption)
		for i := range 20 {
			m.Note(named(fmt.Sprint("node-", i), spotNode("m5.large", "a")), rec)
		}
		time.Sleep(2 * burst)
		stop()
		api.err = errors.New("etcd is slow")
		next, stop := keep(t, api, io.Discard)
		visit := func() {
			for i := range 20 {
				next.Note(named(fmt.Sprint("node-", i), spotNode("m5.large", "a")), rec)
			}
			next.Note(named("later", spotNode("m5.large", "a")), record(interruption.SpotInterruption))
		}
		visit()
		if _, known := next.LastLosses(time.Time{}); known || len(next.Lost()) != 1 {
			t.Errorf("lost %v, want one offering; what was not read counts as known: %t", next.Lost(), known)
		}
		api.err = nil
		time.Sleep(pause)
		synctest.Wait()
		visit()
		next.wantTally(t, "a", 21, 0)
		stop()
	})
}

// Hours are counted for spot nodes that stand, and written three times an hour.
func TestNodeHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		onDemand := spotNode("m5.large", "c")
		onDemand.Labels["karpenter.sh/capacity-type"] = "on-demand"
		api := newConfigMaps(nil)
		_, stop := keep(t, api, t.Output(), spotNode("m5.large", "a"), spotNode("m5.large", "a"), spotNode("m5.large", "b"), onDemand)
		time.Sleep(time.Hour)
		synctest.Wait()
		stop()
		if len(api.writes) != 3 || len(api.reads) != 1 {
			t.Errorf("%d reads and %d writes in an hour, want 1 and 3", len(api.reads), len(api.writes))
		}
		next, stop := keep(t, api, t.Output())
		faded := 24 / math.Ln2 * (1 - math.Exp2(-1.0/24))
		next.wantTally(t, "a", 0, 2*faded)
		next.wantTally(t, "b", 0, faded)
		if len(next.of) != 2 || len(next.Lost()) != 0 {
			t.Errorf("%d offerings with hours and %v lost, want 2 and none", len(next.of), next.Lost())
		}
		stop()
	})
}

// Whatever is in the ConfigMap, the process goes on. It says so once, and replaces it.
func TestHostileContent(t *testing.T) {
	entries := func(n int, change string) string {
		text := `{"at":"2026-01-01T00:00:00Z","offerings":[`
		for i := range n {
			text += fmt.Sprintf(`{"type":"t%d","zone":"a","lost":1,"hours":2,"last":"2026-01-01T00:00:00Z"},`, i)
		}
		return text + change + "]}"
	}
	for name, text := range map[string]string{
		"no JSON":            "offerings",
		"another type":       `{"offerings":7}`,
		"large":              strings.Repeat(" ", maxText) + "{}",
		"too many":           entries(maxLosses, `{"type":"one","zone":"a"}`),
		"no zone":            entries(1, `{"type":"one"}`),
		"a long name":        entries(1, `{"type":"one","zone":"`+strings.Repeat("a", 64)+`"}`),
		"no name of a label": entries(1, `{"type":"one","zone":"a","pool":"\u001b[31m"}`),
		"negative":           entries(1, `{"type":"one","zone":"a","lost":-1}`),
		"negative hours":     entries(1, `{"type":"one","zone":"a","hours":-1}`),
		"a negative slot":    entries(1, `{"type":"one","zone":"a","recent":{"1":-1}}`),
		"an enormous slot":   entries(1, `{"type":"one","zone":"a","recent":{"1":2000000000}}`),
		"enormous":           entries(1, `{"type":"one","zone":"a","hours":1e300}`),
		"out of range":       entries(1, `{"type":"one","zone":"a","hours":1e999}`),
		"a long time":        entries(1, `{"type":"one","zone":"a","last":"`+strings.Repeat("1", 100_000)+`"}`),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := &bytes.Buffer{}
				api := newConfigMaps(map[string]string{dataKey: text, "other": "kept"})
				m, stop := keep(t, api, log)
				if len(m.of) != 0 {
					t.Errorf("%d offerings are known, want none", len(m.of))
				}
				m.Note(named("n", spotNode("m5.large", "a")), record(interruption.SpotInterruption))
				time.Sleep(time.Hour)
				stop()
				if n := strings.Count(log.String(), `"level":"error"`); n != 1 || log.Len() > 4<<10 {
					t.Errorf("%d errors in %d bytes of log, want one: %.1000s", n, log.Len(), log)
				}
				if api.held.Data["other"] != "kept" {
					t.Errorf("another key is gone: %v", api.held.Data)
				}
				next, stop := keep(t, api, t.Output())
				next.wantTally(t, "a", 1, 0)
				stop()
			})
		})
	}
}

// An earlier version kept more about each offering. What is still needed is read, and the rest is
// gone with the next write.
func TestMemoryOfEarlierVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		api := newConfigMaps(map[string]string{dataKey: fmt.Sprintf(`{"at":%q,"offerings":[{"type":"m5.large","zone":"a","pool":"spot",`+
			`"lost":3.5,"hours":40.25,"followed":1.5,"risk":2.25,"share":0.75,"last":%q,"recent":{"%d":4}}]}`,
			now.Format(time.RFC3339), now.Format(time.RFC3339), slotOf(now))})
		m, stop := keep(t, api, t.Output())
		m.wantTally(t, "a", 3.5, 40.25)
		if lost, want := m.Lost(), []Loss{{Offering{"m5.large", "a"}, "spot"}}; !slices.Equal(lost, want) {
			t.Errorf("lost %v, want %v", lost, want)
		}
		if got, want := m.TooMany(), map[string]Losses{"spot": {Lost: 4}}; !maps.Equal(got, want) {
			t.Errorf("too many are lost by %v, want %v", got, want)
		}
		time.Sleep(hoursEvery + time.Second)
		stop()
		text := api.held.Data[dataKey]
		for _, field := range []string{"followed", "risk", "share"} {
			if len(api.writes) == 0 || strings.Contains(text, field) {
				t.Errorf("%d writes, and %q is kept: %s", len(api.writes), field, text)
			}
		}
	})
}

// What is said of the future does not count for longer than what has just happened.
func TestTimesToCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, later := New(), time.Now().Add(1000*time.Hour).UTC().Format(time.RFC3339)
		if _, err := m.load(`{"at":"` + later + `","offerings":[{"type":"m5.large","zone":"a","pool":"spot","lost":3,"hours":4,"last":"` + later + `",
			"recent":{"1":9,"9999999999":9,"9223372036854775807":9,"-9223372036854775808":9}}]}`); err != nil {
			t.Fatal(err)
		}
		m.wantTally(t, "a", 3, 4)
		m.all = func() []*corev1.Node { return nil }
		if got := m.TooMany(); len(got) > 0 {
			t.Errorf("%v, want no losses of another time", got)
		}
		early := record(interruption.SpotInterruption)
		early.Received = early.Received.Add(time.Hour)
		m.Note(named("n", spotNode("m5.large", "b")), early)
		time.Sleep(Lately)
		if lost := m.Lost(); len(lost) != 0 {
			t.Errorf("lost %v, want nothing", lost)
		}
	})
}

// Where the ConfigMap cannot be read or written, that is said once. Noting waits for nothing, the memory works,
// and is written as soon as it can be.
func TestWithoutConfigMap(t *testing.T) {
	for name, hangs := range map[string]time.Duration{"refused": 0, "slow": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, api := &bytes.Buffer{}, newConfigMaps(nil)
				api.err, api.hangs = apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, ConfigMap, errors.New("no role")), hangs
				m, stop := keep(t, api, log)
				for i := range 10 {
					before := time.Now()
					m.Note(named(fmt.Sprint("node-", i), spotNode("m5.large", "a")), record(interruption.SpotInterruption))
					if lost := m.Lost(); len(lost) != 1 || time.Since(before) != 0 {
						t.Errorf("lost %v after %s, want one at once", lost, time.Since(before))
					}
					time.Sleep(time.Minute)
				}
				if n := strings.Count(log.String(), `"level":"warn"`); n != 1 || len(api.reads) > 12 {
					t.Errorf("%d warnings and %d requests in 10 minutes, want one and about 10:\n%s", n, len(api.reads), log)
				}
				api.err = nil
				time.Sleep(2 * time.Minute)
				stop()
				next, stop := keep(t, api, t.Output())
				time.Sleep(hangs)
				synctest.Wait()
				if lost := next.Lost(); len(lost) != 1 {
					t.Errorf("the next process knows of %v, want one", lost)
				}
				stop()
			})
		})
	}
}

// As much as is ever remembered can be read back.
func TestLargestMemoryIsRead(t *testing.T) {
	m, long := New(), strings.Repeat("x", 63)
	m.counts = true
	var nodes []*corev1.Node
	for i := range maxLosses + 10 {
		node := spotNode(fmt.Sprintf("%s%04d", long[4:], i), long)
		node.Labels["karpenter.sh/nodepool"] = long
		nodes = append(nodes, node)
		m.Note(named(fmt.Sprint("node-", i), node), record(interruption.SpotInterruption))
	}
	m.recount(nodes)
	for _, loss := range m.of {
		loss.Lost, loss.Hours = 1e-100/3, 1e-100/3
		for at := range int64(window / slot) {
			loss.Recent[slotOf(time.Now())-at] = 5000
		}
	}
	text := m.text()
	if n, err := New().load(text); n != maxLosses || err != nil || len(text) > maxText {
		t.Errorf("%d offerings of %d bytes: %v", n, len(text), err)
	}
}

// What is remembered so as to count no node twice is forgotten, also where nothing can be written.
func TestCountedNodesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newConfigMaps(nil)
		api.err = apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, ConfigMap, errors.New("no role"))
		m, stop := keep(t, api, io.Discard)
		for i := range 60 {
			m.Note(named(fmt.Sprint("node-", i), spotNode("m5.large", "a")), record(interruption.SpotInterruption))
			time.Sleep(time.Minute)
		}
		stop()
		if n, most := len(m.counted), int(Lately/time.Minute)+1; n == 0 || n > most {
			t.Errorf("%d nodes are remembered, want 1 to %d", n, most)
		}
	})
}

// What a leader has kept is shown to others, also where there is nothing; what cannot be is an error of
// a bounded length.
func TestReadForPeople(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newConfigMaps(nil)
		if m, err := Read(t.Context(), api, nil); err != nil || len(m.LastDay()) > 0 {
			t.Errorf("%v, %v; want nothing", m.LastDay(), err)
		}
		m, stop := keep(t, api, t.Output(), spotNode("m5.large", "a"))
		m.Note(named("old", spotNode("m5.large", "c")), record(interruption.SpotInterruption))
		time.Sleep(25 * time.Hour)
		for i := range 3 {
			m.Note(named(fmt.Sprint("node-", i), spotNode("m5.large", "a")), record(interruption.SpotInterruption))
		}
		time.Sleep(time.Minute)
		m.Note(named("risky", spotNode("m5.large", "b")), record(interruption.RebalanceRecommendation))
		time.Sleep(2 * pause)
		stop()
		m, err := Read(t.Context(), api, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(m.LastDay())
		if want := `[{"type":"m5.large","zone":"b","pool":"spot","lost":0,"hours":0,"last":"2000-01-02T01:01:00Z"},` +
			`{"type":"m5.large","zone":"a","pool":"spot","lost":3,"hours":17.8,"last":"2000-01-02T01:00:00Z"}]`; string(got) != want || err != nil {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
		api.held.Data[dataKey] = `{"at":"` + strings.Repeat("1", 100_000) + `"}`
		if m, err := Read(t.Context(), api, nil); err == nil || len(err.Error()) > 2000 || len(m.LastDay()) > 0 {
			t.Errorf("%v, %d bytes; want a short error and nothing", m.LastDay(), len(fmt.Sprint(err)))
		}
		api.err = apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, ConfigMap)
		if _, err := Read(t.Context(), api, nil); err != nil {
			t.Errorf("%v; want nothing where there is no ConfigMap", err)
		}
	})
}
