// Package asg replaces interrupted nodes through their Auto Scaling groups: it takes
// the instance out of its group without making the group smaller, and the group
// launches another.
//
//	                                 the record on the
//	           group is found         Node names it        detached               a new node is Ready
//	Requested ───────────────► Requested ───────► (detach) ────────► Launched ───────────────────► Ready
//	   │       Name: the group                        │              Name: the group               Name: its instance
//	   ▼                                              ▼
//	Unsupported: no group, no permission, ...       Failed
//
// No method of [Backend] but Release makes a call while its caller waits. What is to be
// asked is gathered for a moment and asked for many nodes at once by [Backend.Run]: a
// burst of 200 nodes of one group is some 15 calls.
//
// # Once, and no more
//
// An instance can leave a group only once, so that no group ever launches more than one
// replacement for a node, whatever is asked again: Auto Scaling refuses the second time.
// What a restart could lose is the knowledge that it was us. So nothing is detached
// before the record on the Node names the group. From then on an instance that is in no
// group, or is leaving it, has been detached, whether or not its detacher lived to say
// so. That is also the condition for the one thing here that destroys: the instance of
// a node that was only recommended for rebalance is terminated when it is drained and in
// no group. EC2 ends all others by itself.
//
// # Which replacement
//
// The replacements of one group are interchangeable. A Node that is Ready counts as one
// if its instance is in the group, it has joined since the notice, it was not in the
// group yet when the first instance was detached, and it replaces no other node; the
// node with the nearest deadline gets the first. What has been given out stands in the
// records, so that a later process does not give it out again. It does not know which
// instances were there before, and may take for a replacement what the group was
// launching already for another reason.
//
// # Failures
//
// Throttling and failures of the service are tried again, with backoff, until the node
// is gone. A permission that is missing is reported once, and asked for again every
// minute while nodes need it; those nodes are Unsupported. Where one instance makes a
// whole call invalid, the call is split.
//
// All methods are safe for concurrent use.
package asg
