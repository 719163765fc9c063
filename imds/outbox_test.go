package imds

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

// desk is an outbox whose notices are taken by the test.
type desk struct {
	*testing.T
	*outbox
}

// say posts a word about a topic.
func (d desk) say(topic, word string) {
	d.post(topic, word, interruption.Notice{EventID: topic, Action: word})
}

// take delivers what waits and returns it as "topic word".
func (d desk) take() (taken []string) {
	for {
		w, ok := d.first()
		if !ok {
			return taken
		}
		taken = append(taken, w.topic+" "+w.notice.Action)
		d.settle(w)
	}
}

func (d desk) want(words ...string) {
	d.Helper()
	if diff := cmp.Diff(words, d.take()); diff != "" {
		d.Error(diff)
	}
}

func TestOutboxKeepsTheLatestWordOfEachTopic(t *testing.T) {
	d := desk{t, newOutbox()}
	d.say("a", "active")
	d.say("b", "active")
	d.say("a", "withdrawn")
	d.want("a withdrawn", "b active")
	d.say("a", "withdrawn")
	d.say("b", "active")
	d.want() // settled
	d.say("b", "withdrawn")
	d.say("b", "active")
	d.want("b active") // it may be that the withdrawal came through
	d.say("b", "withdrawn")
	d.want("b withdrawn")
	d.say("b", "active")
	d.want("b active")
}

// What is said while an attempt is under way comes after it.
func TestOutboxWhileALetterIsUnderWay(t *testing.T) {
	d := desk{t, newOutbox()}
	d.say("a", "active")
	l, _ := d.first()
	d.say("a", "active")
	d.say("a", "withdrawn")
	d.settle(l)
	d.want("a withdrawn")
	d.say("a", "withdrawn")
	d.want()
}

func TestOutboxLetsOthersGoFirst(t *testing.T) {
	d := desk{t, newOutbox()}
	d.say("a", "active")
	d.say("b", "active")
	l, _ := d.first()
	d.postpone(l)
	d.want("b active", "a active")
}

func TestOutboxTellsOfNewsOnce(t *testing.T) {
	d := desk{t, newOutbox()}
	d.say("a", "active")
	l, ok := d.next(t.Context())
	if !ok || l.attempt != 1 {
		t.Fatalf("got %+v, %t", l, ok)
	}
	d.say("a", "active") // polled again
	if news, ok := d.pause(t.Context(), time.Millisecond); news || !ok {
		t.Errorf("news %t, ok %t; want none: it was known", news, ok)
	}
	d.say("a", "withdrawn")
	if news, ok := d.pause(t.Context(), time.Hour); !news || !ok {
		t.Errorf("news %t, ok %t; want some", news, ok)
	}
}

func TestOutboxIsBounded(t *testing.T) {
	d := desk{t, newOutbox()}
	for i := range 10 * maxSettled {
		d.say(fmt.Sprint(i), "active")
		if i%(2*maxWaiting) == 0 {
			d.take()
		}
	}
	if len(d.waiting) > maxWaiting || len(d.settled) > maxSettled {
		t.Errorf("%d waiting, %d settled", len(d.waiting), len(d.settled))
	}
}
