// Package imds watches the EC2 instance metadata service of the node that it runs
// on, and hands every interruption that is announced there to an Accepter.
//
// One connection is polled, one request at a time; New starts nothing, and Run may
// be called once. A notice is submitted until Accept returns nil, by the poller
// itself and with backoff, while polling goes on; after that the same announcement
// is not submitted again by this process. A new process reads it again, as the
// metadata service keeps it: Accept has to be idempotent. Faults of the metadata
// service are counted, logged when their reason changes and retried for ever; none
// of them ends Run.
//
// An announcement is seen within one interval (2 s) while the service answers, and
// within maxBackoff + callTimeout (12 s) of its first answer after an outage:
// of the two minutes that EC2 gives, a poller that had to back off costs at most a
// tenth.
package imds
