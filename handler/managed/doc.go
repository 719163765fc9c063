// Package managed restricts what is acted on to instances that carry a tag.
//
//	source ─► managed.Accepter ─┬─ has the tag ──► the next Accepter
//	                            └─ has it not ───► Unmanaged: nothing is done
//
// EventBridge cannot filter by tag, so that a cluster is told of every instance of its
// account. Instances are asked about in batches, a burst of hundreds in a few calls, and
// answers are kept for a while; an instance that EC2 does not know has no tag.
//
// EC2 is not allowed to cost an interruption. If it does not answer within patience, or
// may not be asked, an instance that is a Node of this cluster counts as managed: to drain
// one node too many is better than to lose the pods of one. So does one that is no Node,
// as nothing is done about that, unless a lifecycle hook waits for it: such a notice is an
// error, and is delivered again. The reason is logged when it changes.
//
// All methods are safe for concurrent use.
package managed
