package interruption

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRecordRoundTrip(t *testing.T) {
	rec := NewRecord(Notice{Kind: SpotInterruption, Source: IMDS, EventID: "e", InstanceID: "i-1", Action: "terminate",
		Noticed: t0, Received: t0.Add(time.Second), Deadline: t0.Add(2 * time.Minute)})
	rec.Replacement = &Replacement{Backend: "karpenter", Name: "c", Pool: "p", State: "Ready"}
	rec.Pods = &Pods{Total: 2, Graceful: 1, Left: 1}
	got, err := ParseRecord(rec.String())
	if err != nil || got.String() != rec.String() {
		t.Errorf("%s, %v; want %s", got, err, rec)
	}
	if len(rec.String()) > 1024 {
		t.Errorf("%d bytes, want at most 1 KiB on every Node", len(rec.String()))
	}
}

// A newer version may have written the record, and may read it again after a rollback. What it alone
// knows lasts as long as the interruption.
func TestUnknownFieldsSurvive(t *testing.T) {
	n := Notice{Kind: RebalanceRecommendation, Source: IMDS, EventID: "e", InstanceID: "i-1", Noticed: t0, Received: t0}
	text := NewRecord(n).String()
	read, err := ParseRecord(strings.TrimSuffix(text, "}") + `,"later":{"a":[1]},"PHASE":"Draining"}`)
	if err != nil {
		t.Fatal(err)
	}
	n.Kind, n.EventID, n.Deadline = SpotInterruption, "f", t0.Add(2*time.Minute)
	rec, changed := read.Merge(n)
	if got := rec.Undone().String(); !changed || !strings.HasSuffix(got, `,"later":{"a":[1]}}`) || strings.Contains(got, "PHASE") {
		t.Errorf("%s became %s", read, got)
	}
	if got := NewRecord(n).String(); strings.Contains(got, "later") {
		t.Errorf("the next interruption has %s", got)
	}
}

func TestParseRecordRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "no object": "[]", "no JSON": "}{", "no kind": `{"phase":"Noticed"}`, "other kind": `{"kind":"meteor","phase":"Noticed"}`,
		"other phase": `{"kind":"spot-interruption","phase":"Gone"}`, "no time": `{"kind":"spot-interruption","phase":"Noticed","deadline":"soon"}`,
		"huge": `{"kind":"spot-interruption","phase":"Noticed","event":"` + strings.Repeat("x", maxRecord) + `"}`,
	} {
		if rec, err := ParseRecord(text); err == nil {
			t.Errorf("%s: read as %s", name, rec)
		}
	}
}

// A kubelet may write its Node's record. What a record can make us do is bounded by what we write
// ourselves: the figures here are documented limits of AWS and of ours.
func TestParseRecordRefusesMoreThanWeWrite(t *testing.T) {
	hook := Hook{Group: "g", Name: "h", Since: t0, Until: t0.Add(48 * time.Hour), Beat: t0.Add(time.Hour)}
	announced := announcementOf(Notice{Kind: SpotInterruption, EventID: "e", Noticed: t0, Received: t0})
	full := NewRecord(Notice{Kind: SpotInterruption, Source: IMDS, EventID: "e", InstanceID: "i-1", Noticed: t0, Received: t0})
	full.Hooks, full.Announced, full.Past = slices.Repeat([]Hook{hook}, 8), slices.Repeat([]Announcement{announced}, 8), slices.Repeat([]Announcement{announced}, 8)
	full.Replacement, full.Pods = &Replacement{Reason: Clip(strings.Repeat("x", 5000))}, &Pods{Total: 10_000, Refusal: Clip(strings.Repeat("x", 5000))}
	if _, err := ParseRecord(full.String()); err != nil {
		t.Fatalf("as full as it can be: %v", err)
	}
	full.Hooks[0].Since = time.Time{} // as nothing says when it began, the record's own time counts
	if _, err := ParseRecord(full.String()); err != nil {
		t.Fatalf("a hook without its beginning: %v", err)
	}
	for name, more := range map[string]func(r *Record){
		"a 9th hook":               func(r *Record) { r.Hooks = append(r.Hooks, hook) },
		"a 9th announcement":       func(r *Record) { r.Announced = append(r.Announced, announced) },
		"a 9th past announcement":  func(r *Record) { r.Past = append(r.Past, announced) },
		"a 9th mark":               func(r *Record) { r.Ours = make([]string, 9) },
		"long mark":                func(r *Record) { r.Ours = []string{strings.Repeat("x", 256)} },
		"long group":               func(r *Record) { r.Hooks[7].Group = strings.Repeat("x", 256) },
		"long hook":                func(r *Record) { r.Hooks[7].Name = strings.Repeat("x", 256) },
		"long token":               func(r *Record) { r.Hooks[7].Token = strings.Repeat("x", 256) },
		"wait of 48 h and more":    func(r *Record) { r.Hooks[7].Until = t0.Add(48*time.Hour + time.Second) },
		"heartbeat after the wait": func(r *Record) { r.Hooks[7].Beat = t0.Add(48*time.Hour + time.Second) },
		"hook since year 9000":     func(r *Record) { r.Hooks[7] = Hook{Since: time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)} },
		"negative heartbeats":      func(r *Record) { r.Hooks[7].Heartbeats = -1 },
		"long event":               func(r *Record) { r.Event = strings.Repeat("x", 513) },
		"long announced event":     func(r *Record) { r.Announced[7].Event = strings.Repeat("x", 513) },
		"long past event":          func(r *Record) { r.Past[7].Event = strings.Repeat("x", 513) },
		"long action":              func(r *Record) { r.Action = strings.Repeat("x", 256) },
		"long source":              func(r *Record) { r.Announced[0].Source = Source(strings.Repeat("x", 256)) },
		"long instance":            func(r *Record) { r.Instance = strings.Repeat("x", 256) },
		"long boot id":             func(r *Record) { r.Boot = strings.Repeat("x", 256) },
		"long replacement":         func(r *Record) { r.Replacement.Name = strings.Repeat("x", 1028) },
		"long reason":              func(r *Record) { r.Replacement.Reason = strings.Repeat("x", 1028) },
		"long refusal":             func(r *Record) { r.Pods.Refusal = strings.Repeat("x", 1028) },
		"received in year 9000":    func(r *Record) { r.Received = time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"deadline in year 9999":    func(r *Record) { r.Deadline = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -8*3600)) },
		"announced in year 2":      func(r *Record) { r.Announced[7].Noticed = time.Date(2, 1, 1, 0, 0, 0, 0, time.UTC) },
		"cancelled in year 2201":   func(r *Record) { r.Past[7].Off = time.Date(2201, 1, 1, 0, 0, 0, 0, time.UTC) },
		"begun in year 2201":       func(r *Record) { r.Begun = time.Date(2201, 1, 1, 0, 0, 0, 0, time.UTC) },
		"ended in year 2201":       func(r *Record) { r.Ended = time.Date(2201, 1, 1, 0, 0, 0, 0, time.UTC) },
		"negative pods":            func(r *Record) { r.Pods.Total = -1 },
		"10,001 pods":              func(r *Record) { r.Pods.Left = 10_001 },
	} {
		rec, err := ParseRecord(full.String())
		if err != nil {
			t.Fatal(err)
		}
		more(&rec)
		if _, err := ParseRecord(rec.String()); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}

// A short text isn't written again to see how long that is: whatever it says, it can be read again.
func TestShortTextCanBeReadAgain(t *testing.T) {
	lists := `"announced":[` + strings.Repeat("{},", 7) + `{}],"past":[` + strings.Repeat("{},", 7) + `{}],` +
		`"hooks":[` + strings.Repeat("{},", 7) + `{}],"ours":["","","","","","","",""],"replacement":{},"pods":{},"release":true,"canceled":true`
	for _, fill := range []string{"<", "\xff", "\u2028", "x", `\u0000`} {
		begin, end := `{"kind":"spot-interruption","phase":"Noticed",`+lists+`,"later":"`, `"}`
		text := begin + strings.Repeat(fill, (neverTooLong-len(begin+end))/len(fill)) + end
		rec, err := ParseRecord(text)
		if err != nil {
			t.Fatalf("filled with %q: %v", fill, err)
		}
		if n := len(rec.String()); n > maxRecord {
			t.Errorf("filled with %q, %d bytes become %d", fill, len(text), n)
		}
		if _, err := ParseRecord(rec.String()); err != nil {
			t.Errorf("filled with %q: %v", fill, err)
		}
	}
}

// What a kubelet adds to the past makes no record of ours too large to be read again.
func TestPastIsBounded(t *testing.T) {
	long := Past{{Kind: ScheduledEvent, Event: strings.Repeat("x", 1500)}, {Kind: ScheduledEvent, Event: "e"}}
	if got := ParsePast(long.String()); len(got) != 1 || got[0].Event != "e" {
		t.Errorf("%s, want only the one whose name could be ours", got)
	}
}

// Anybody who may annotate a Node can write there. Reading never panics, and what was read can
// be written and read again.
func FuzzParseRecord(f *testing.F) {
	f.Add(NewRecord(someNotice(rand.New(rand.NewPCG(1, 2)))).String())
	f.Add(`{"kind":"spot-interruption","phase":"Draining","pods":{"total":-1},"ours":[null]}`)
	f.Add(`{"kind":"spot-interruption","phase":"Noticed","later":null,"Later":[{}],"":1,"\u212aind":"x","pha\u017fe":2}`)
	f.Add(`{"kind":"spot-interruption","phase":"Noticed","past":[` + strings.Repeat(`{},`, 1000) + `{}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		rec, err := ParseRecord(text)
		if err != nil {
			return
		}
		if n := len(rec.String()); n > maxRecord {
			t.Errorf("%d bytes became %d", len(text), n)
		}
		if again, err := ParseRecord(rec.String()); err != nil || again.String() != rec.String() {
			t.Errorf("%s became %s, %v", rec, again, err)
		}
	})
}

// A process that does not know how long an announcement has been there reads it again long
// after the drain. That is not about a later life of the node; another announcement is.
func TestSameAnnouncementIsNoLaterLife(t *testing.T) {
	terminating := Notice{Kind: InstanceTerminating, Source: IMDS, EventID: "imds/i/instance-terminating/Terminated", Noticed: t0, Received: t0}
	event := Notice{Kind: ScheduledEvent, Source: IMDS, EventID: "imds/i/scheduled-event/e", Noticed: t0, Received: t0, Deadline: t0.Add(time.Minute)}
	rec, _ := NewRecord(terminating).Merge(event)
	rec.Phase = Released
	for _, n := range []Notice{terminating, event} {
		n.Noticed = t0.Add(time.Hour)
		if n.supersedes(rec) {
			t.Errorf("%s supersedes the record that has it: %s", n.EventID, rec)
		}
		n.EventID += "-2"
		if !n.supersedes(rec) {
			t.Errorf("%s does not supersede %s", n.EventID, rec)
		}
	}
}

// Both sources announce a hibernation, each a moment after it has begun. That is one
// interruption until the instance is awake. What comes then is about its next run.
func TestHibernationIsAnnouncedTwice(t *testing.T) {
	sleep := Notice{Kind: SpotInterruption, Source: IMDS, EventID: "imds", Action: ActionHibernate, Noticed: t0, Received: t0, Deadline: t0}
	rec := NewRecord(sleep)
	rec.Phase, rec.Boot = Drained, "boot-1"
	again := sleep
	again.Source, again.EventID = Queue, "queue"
	again.Noticed, again.Received, again.Deadline = t0.Add(time.Second), t0.Add(2*time.Second), t0.Add(2*time.Second)
	if _, changed := rec.Merge(again); changed || again.supersedes(rec) || again.ofNextRun(rec, "boot-1", t0.Add(-time.Hour)) {
		t.Errorf("%+v is news to %s", again, rec)
	}
	again.Noticed = t0.Add(9 * time.Hour)
	if woke := t0.Add(8 * time.Hour); !again.ofNextRun(rec, "boot-1", woke) || sleep.ofNextRun(rec, "boot-1", woke) {
		t.Errorf("%+v cannot be told apart from what %s has", again, rec)
	}
}

// The annotation that keeps what is past is as open. Text that cannot be read is nothing; what can
// be is written and read again, and stays bounded.
func FuzzParsePast(f *testing.F) {
	f.Add(PastOfCanceled(NewRecord(someNotice(rand.New(rand.NewPCG(1, 2)))), time.Unix(0, 0).UTC()).String())
	f.Add(`[{"kind":"meteor"},null,{"off":"soon"}]`)
	f.Add(`[` + strings.Repeat(`{},`, 1000) + `{}]`)
	f.Fuzz(func(t *testing.T, text string) {
		past := ParsePast(text)
		if again := ParsePast(past.String()); again.String() != past.String() {
			t.Errorf("%s became %s", past, again)
		}
		if all := past.And(past); len(all) > maxPast {
			t.Errorf("%d are kept, want at most %d", len(all), maxPast)
		}
		_ = past.Has(someNotice(rand.New(rand.NewPCG(1, 2))))
	})
}

// What is written down as past is read again whole, and nothing else is.
func TestPastIsReadAgain(t *testing.T) {
	n := Notice{Kind: RebalanceRecommendation, Source: Queue, EventID: "event-1", InstanceID: "i-1", Noticed: t0, Received: t0}
	event := n
	event.Kind, event.EventID, event.Deadline = ScheduledEvent, "event-2", t0.Add(time.Hour)
	written := PastOfCanceled(NewRecord(n), t0).And(PastOfCanceled(NewRecord(event), t0))
	read := ParsePast(written.String())
	if len(read) != 2 || read.String() != written.String() {
		t.Errorf("%s became %s", written, read)
	}
	if !read.Has(n) || !read.Has(event) {
		t.Errorf("%s doesn't have what it was made of", read)
	}
	n.EventID, n.Noticed, n.Received = "event-3", t0.Add(time.Hour), t0.Add(time.Hour)
	if read.Has(n) {
		t.Errorf("%s has a later recommendation", read)
	}
	for _, text := range []string{"", "null", "{}", "[{]", `[{"kind":"` + strings.Repeat("x", 200_000) + `"}]`} {
		if got := ParsePast(text); len(got) != 0 {
			t.Errorf("%.20q: %d entries", text, len(got))
		}
	}
}

// A record of 16 KiB is read, and none that is larger.
func TestSizeOfARecord(t *testing.T) {
	text := NewRecord(Notice{Kind: SpotInterruption, EventID: "event", Source: Queue}).String()
	full := text + strings.Repeat(" ", 16384-len(text))
	if _, err := ParseRecord(full); err != nil {
		t.Error(err)
	}
	if _, err := ParseRecord(full + " "); err == nil {
		t.Error("a record of 16 KiB and a byte is read")
	}
}
