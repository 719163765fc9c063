// Package queue consumes the SQS queue that EventBridge feeds, and hands every
// interruption that is announced there to an Accepter.
//
// Understood are the messages of EventBridge about an instance's end (the table formats
// has the kinds, each with a file and samples in testdata), the lifecycle hooks that an
// Auto Scaling group sends straight to the queue, and all of these wrapped by SNS. A
// message can have many notices, or none: what is understood and announces nothing, such
// as a group's test notification, is deleted.
//
// Receivers long-poll side by side; a message is parsed by the receiver and then
// waits in a goroutine of its own, so that none holds up another. New starts
// nothing, and Run may be called once. Nothing is lost: a message is deleted only
// after Accept returned nil for each of its notices, and stays hidden from other
// consumers while it is in work; if that is for longer than the queue retains messages, it is
// in memory alone. An error that wraps interruption.ErrNotYet is no fault:
// it is asked about again, quietly, every few seconds. Accept is repeated, with backoff and in memory: a
// message that is given back to the queue for another try would be counted towards
// the dead-letter queue by a redrive policy. SQS delivers at least once and in no
// order, and a process can end between Accept and the deletion: Accept has to be
// idempotent.
//
// Messages that cannot be read are logged, counted and left for the redrive policy,
// or deleted where the queue has none. Faults of SQS are counted, logged when their
// reason changes and retried for ever; none of them ends Run.
//
// A queue is for the consumers of one cluster. There can be several of those, but what a
// consumer of another cluster takes is lost.
//
// In a dry run messages are received and accepted, and nothing else: they are not
// deleted, nor is their visibility changed. What receiving does, SQS does even so:
// it hides the message for 30 s and adds one to its receive count, so a dry run
// beside a consumer of the same queue delays it, and wears a redrive policy down.
package queue
