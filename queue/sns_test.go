package queue

import (
	"encoding/json"
	"errors"
	"testing"
	"time"
)

// What SNS can wrap, which is anything.
func FuzzSNS(f *testing.F) {
	for _, name := range []string{"lifecycle_direct.json", "test_notification.json", "spot_interruption.json", "health_event.json", "lifecycle_sns.json", "malformed_garbage.txt"} {
		f.Add(testdata(f, name))
	}
	received := sent.Add(time.Second)
	f.Fuzz(func(t *testing.T, message string) {
		text, err := json.Marshal(message)
		if err != nil { // cannot happen: whatever a string holds has a JSON form
			t.Fatal(err)
		}
		notices, err := parse(`{"Type":"Notification","TopicArn":"arn","Message":`+string(text)+`}`, received)
		if err != nil {
			if _, ok := errors.AsType[*rejection](err); !ok {
				t.Fatalf("error is not a rejection: %v", err)
			}
		}
		wellFormed(t, notices, received)
	})
}
