package imds

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

// desk is an outbox whose notices are taken by the test.
type desk struct {
	*testing.T
	*outbox
}

func newDesk(t *testing.T) desk {
	d := desk{t, &outbox{}}
	d.open()
	t.Cleanup(d.topics.ShutDown)
	return d
}

// say posts a word about a topic.
func (d desk) say(topic, word string) {
	d.post(topic, word, interruption.Notice{EventID: topic, Action: word})
}

// begin starts the next attempt, if anything waits.
func (d desk) begin() *outgoing {
	for d.topics.Len() > 0 {
		topic, _ := d.topics.Get()
		if w := d.waits(topic); w != nil {
			return w
		}
		d.topics.Done(topic)
	}
	return nil
}

// end ends an attempt that has succeeded.
func (d desk) end(w *outgoing) {
	d.markDelivered(w)
	d.topics.Done(w.topic)
}

// take delivers what waits and returns it as "topic word".
func (d desk) take() (taken []string) {
	for w := d.begin(); w != nil; w = d.begin() {
		taken = append(taken, w.topic+" "+w.notice.Action)
		d.end(w)
	}
	return taken
}

func (d desk) want(words ...string) {
	d.Helper()
	if diff := cmp.Diff(words, d.take()); diff != "" {
		d.Error(diff)
	}
}

func TestOutboxKeepsTheLatestWordOfEachTopic(t *testing.T) {
	d := newDesk(t)
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
func TestOutboxWhileAnAttemptIsUnderWay(t *testing.T) {
	d := newDesk(t)
	d.say("a", "active")
	w := d.begin()
	d.say("a", "active")
	d.say("a", "withdrawn")
	d.end(w)
	d.want("a withdrawn")
	d.say("a", "withdrawn")
	d.want()
}

// A word that could not be delivered waits, and the others do not.
func TestOutboxLetsOthersGoFirst(t *testing.T) {
	d := newDesk(t)
	d.say("a", "active")
	d.say("b", "active")
	w := d.begin()
	d.topics.Add(w.topic) // another attempt
	d.topics.Done(w.topic)
	d.want("b active", "a active")
	if w.attempt != 2 {
		t.Errorf("%d attempts, want 2", w.attempt)
	}
}

// A word that is polled again is no news, but another one is.
func TestOutboxReportsNewsOnce(t *testing.T) {
	d := newDesk(t)
	d.say("a", "active")
	w := d.begin()
	d.topics.Done(w.topic) // it is to be tried again later
	d.say("a", "active")   // polled again
	d.want()
	d.say("a", "withdrawn")
	d.want("a withdrawn")
}

func TestOutboxIsBounded(t *testing.T) {
	for name, settled := range map[string]bool{"settled": true, "waiting": false} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			for i := range 10 * maxTopics {
				d.say(fmt.Sprint(i), "active")
				if settled {
					d.take()
				}
			}
			if len(d.latest) > maxTopics || d.topics.Len() > maxTopics {
				t.Errorf("%d topics, %d of them waiting", len(d.latest), d.topics.Len())
			}
			d.take()
			d.say("last", "active")
			d.want("last active")
		})
	}
}
