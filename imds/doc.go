// Package imds watches the EC2 instance metadata service of the node that it runs
// on, and hands every interruption that is announced there to an Accepter.
//
//	path                                   kind                       read every
//	spot/instance-action                   spot-interruption          interval (2 s)
//	autoscaling/target-lifecycle-state     instance-terminating       2 intervals
//	events/recommendations/rebalance       rebalance-recommendation   2 intervals
//	events/maintenance/scheduled, history  scheduled-event            15 intervals, 30 s at most
//
// That is about one small request a second. Each kind can be switched off: its paths are
// then never asked for.
//
// One connection is polled, one request at a time. New starts nothing, and Run can be called
// once. The poller submits a notice until Accept returns nil, with backoff, while polling
// goes on. Then this process does not submit the same word again before the service has said
// something else about the same event. If there are several words on one event that could
// not be submitted yet, only the latest is. A new process reads all of them again under the
// same ids, as the metadata service keeps them: Accept has to be idempotent.
//
// A scheduled event that is completed or canceled, or is in no list any more, is submitted
// once more, as withdrawn. So is all that the history of events holds, as a process does not
// know what the one before it has announced. No other kind is ever taken back.
//
// Faults of the metadata service are counted, logged when their reason changes and retried
// for ever; none of them ends Run. An announcement that is unknown in part, such as a code
// that is not documented, is acted on as the worst that it could be, counted and logged once.
//
// A spot notice is seen within one interval (2 s) while the service answers, and within
// maxBackoff + callTimeout (12 s) of its first answer after an outage. So backing off costs
// at most a tenth of the two minutes that EC2 gives.
package imds
