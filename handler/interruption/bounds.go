package interruption

import (
	"fmt"
	"strings"
	"time"
)

// The bounds of what is read back from a Node, whose kubelet may have written it. What we write
// ourselves stays within them, as the sources check what they read.
const (
	// maxRecord bounds the whole text, in bytes. Our own records are below 1 KiB, and below half
	// of maxRecord even when as full as they can be.
	maxRecord = 16 << 10

	// neverTooLong is the length, in bytes, up to which a text cannot exceed maxRecord when written again: each
	// byte becomes at most six, if it is escaped, and the fields left out of its lists add 5 KiB at most.
	neverTooLong = 1 << 10

	// maxName bounds names, in bytes. Auto Scaling's are the longest: those of a group and of a
	// hook.
	maxName = 255

	// maxEvent bounds the name of an announcement, in bytes. The longest is the ARN of a Health
	// event, of which the queue keeps 256; the metadata service's names have a prefix.
	maxEvent = 512

	// maxText bounds, in bytes, each text in a record that others wrote: what a provisioner, a
	// webhook of the cluster or a cloud says about a failure has no limit of its own.
	maxText = 1 << 10

	// clipped ends a text that was longer.
	clipped = "..."

	// maxAnnounced bounds the announcements of one record: there is one for each kind, and EC2
	// schedules one or two events for an instance. The weakest beyond that are dropped.
	maxAnnounced = 8

	// maxPast bounds the announcements that no longer stand: it can hold all that one record
	// announces. An instance has one or two scheduled events in its life.
	maxPast = maxAnnounced

	// maxHooks bounds the hooks of one record. A group has at most 50 hooks, and one or two
	// in practice.
	maxHooks = 8

	// maxOurs is more than what can be set on a Node.
	maxOurs = 8

	// maxPods is far more than a node can run.
	maxPods = 10_000

	// LongestWait is how long a group waits for an instance at most, heartbeats included.
	// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
	LongestWait = 48 * time.Hour

	// Between these years, differences between times are within what a Duration can hold, and a
	// time can be written in any zone.
	firstYear, lastYear = 1970, 2200
)

// bounded returns an error if the record is not one that we could have written.
func (r Record) bounded() error {
	switch {
	case len(r.Announced) > maxAnnounced:
		return fmt.Errorf("%d announcements, want at most %d", len(r.Announced), maxAnnounced)
	case len(r.Past) > maxPast:
		return fmt.Errorf("%d past announcements, want at most %d", len(r.Past), maxPast)
	case len(r.Hooks) > maxHooks:
		return fmt.Errorf("%d hooks, want at most %d", len(r.Hooks), maxHooks)
	case len(r.Ours) > maxOurs:
		return fmt.Errorf("%d marks of ours, want at most %d", len(r.Ours), maxOurs)
	}
	top := Announcement{
		Kind: r.Kind, Event: r.Event, Source: r.Source, Action: r.Action,
		Noticed: r.Noticed, Received: r.Received, Deadline: r.Deadline,
	}
	for _, list := range [][]Announcement{{top}, r.Announced, r.Past} {
		for _, a := range list {
			if err := a.bounded(); err != nil {
				return err
			}
		}
	}
	for _, h := range r.Hooks {
		if err := h.bounded(r.Received); err != nil {
			return err
		}
	}
	if err := boundedTexts(maxName, r.Instance, r.Boot); err != nil {
		return err
	}
	if err := boundedTexts(maxName, r.Ours...); err != nil {
		return err
	}
	if err := boundedTimes(r.Ended, r.Begun); err != nil {
		return err
	}
	if r.Replacement != nil {
		if err := r.Replacement.bounded(); err != nil {
			return err
		}
	}
	if r.Pods != nil {
		return r.Pods.bounded()
	}
	return nil
}

func (a Announcement) bounded() error {
	if err := boundedTexts(maxEvent, a.Event); err != nil {
		return err
	}
	if err := boundedTexts(maxName, string(a.Kind), string(a.Source), a.Action); err != nil {
		return err
	}
	return boundedTimes(a.Noticed, a.Received, a.Deadline, a.Off)
}

// bounded is as Record's. A hook whose beginning is not known began when the record was received.
func (h Hook) bounded(received time.Time) error {
	if err := boundedTexts(maxName, h.Group, h.Name, h.Token); err != nil {
		return err
	}
	if err := boundedTimes(h.Since, h.Until, h.Beat); err != nil {
		return err
	}
	since := h.Since
	if since.IsZero() {
		since = received
	}
	end := since.Add(LongestWait)
	if h.Until.After(end) || h.Beat.After(end) {
		return fmt.Errorf("hook %.64q waits for more than %s", h.Name, LongestWait)
	}
	if h.Heartbeats < 0 {
		return fmt.Errorf("%d heartbeats", h.Heartbeats)
	}
	return nil
}

func (r Replacement) bounded() error {
	return boundedTexts(maxText+len(clipped), r.Backend, r.Name, r.Pool, r.Capacity, r.State, r.Reason)
}

func (p Pods) bounded() error {
	for _, n := range []int{p.Total, p.Graceful, p.Truncated, p.Forced, p.Left} {
		if n < 0 || n > maxPods {
			return fmt.Errorf("%d pods, want 0 to %d", n, maxPods)
		}
	}
	return boundedTexts(maxText+len(clipped), p.Refusal)
}

// Clip shortens somebody else's text to what a record can hold.
func Clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + clipped
}

func boundedTexts(limit int, texts ...string) error {
	for _, text := range texts {
		if len(text) > limit {
			return fmt.Errorf("text of %d bytes, want at most %d: %.64q", len(text), limit, text)
		}
	}
	return nil
}

func boundedTimes(times ...time.Time) error {
	for _, t := range times {
		if year := t.UTC().Year(); !t.IsZero() && (year < firstYear || year > lastYear) {
			return fmt.Errorf("time in the year %d", year)
		}
	}
	return nil
}
