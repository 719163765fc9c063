// Package managed restricts what is acted on to instances that carry a tag.
//
//	source ─► managed.Accepter ─┬─ has the tag ──► the next Accepter
//	                            └─ has it not ───► Unmanaged: nothing is done
//
// EventBridge cannot filter by tag, so a cluster hears of every instance of its account.
// Instances are looked up in batches, a burst of hundreds in a few calls, and answers are
// kept for a while. An instance that EC2 does not know has no tag.
//
// A lookup must not cost an interruption. If EC2 does not answer within patience, or refuses
// to, an instance that is a Node of this cluster counts as managed: better to drain one node
// too many than to lose the pods of one. So does an instance that is no Node, as nothing is
// done about it, unless a lifecycle hook waits for it: such a notice is an error, and is
// delivered again. The reason is logged when it changes.
//
// All methods are safe for concurrent use.
package managed
