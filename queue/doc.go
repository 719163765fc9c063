// Package queue consumes the SQS queue that EventBridge feeds, and hands every
// interruption that is announced there to an Accepter.
//
// It understands what EventBridge sends about an instance's end (the table formats has the
// kinds, each with a file and samples in testdata), the lifecycle hooks that an Auto Scaling
// group sends straight to the queue, and all of these wrapped by SNS. A message has any
// number of notices. One that is understood and has none, such as a group's test
// notification, is deleted.
//
// Receivers long-poll side by side. A receiver parses a message and leaves the rest to a
// goroutine of the message's own, so no message holds up another. New starts nothing, and
// Run can be called once.
//
// Nothing is lost: a message is deleted only after Accept has returned nil for each of its
// notices, and stays hidden from other consumers until then. It is kept in memory alone
// where that takes longer than the queue retains messages. Accept is tried again in memory,
// with backoff: a message that went back to the queue for another try would come closer to
// the dead-letter queue each time. An error that wraps interruption.ErrNotYet is no fault,
// and Accept is tried again quietly every few seconds. With interruption.ErrNoNode the message
// is first given back once, as another consumer may know the instance. SQS delivers at least once and in no
// order, and a process can end between Accept and the deletion: Accept has to be idempotent.
//
// Messages that cannot be read are logged, counted and left for the redrive policy,
// or deleted where the queue has none. Faults of SQS are counted, logged when their
// reason changes and retried for ever; none of them ends Run.
//
// A queue is for the consumers of one cluster. There can be several of those, but what a
// consumer of another cluster takes is lost.
//
// A dry run receives messages and has them accepted, and no more: it neither deletes them
// nor changes their visibility. But SQS hides every message that it hands out for 30 s, and
// adds one to its receive count. So a dry run beside a consumer of the same queue delays
// that one's messages, and brings them closer to the dead-letter queue.
package queue
