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
// Of the methods of [Backend] only Release and Choose make a call while their caller waits.
// [Backend.Run] gathers for a moment what there is to ask, and asks for many nodes at once:
// a burst of 200 nodes of one group is some 15 calls.
//
// # Once, and no more
//
// An instance can leave a group only once: Auto Scaling refuses the second time. So no group
// ever launches more than one replacement for a node, whatever is asked again. What a
// restart could lose is the knowledge that it was us. So nothing is detached before the
// record on the Node names the group. From then on an instance that is in no group, or is
// leaving it, has been detached, whether or not the process that did so lived to record it.
// That is also the condition for the one thing here that destroys: the instance of a node
// with no more than a rebalance recommendation, or of a rehearsal that releases its node, is
// terminated when it is drained and in no group. EC2 ends all others by itself.
//
// An instance that has left does not come back, so no other rehearsal detaches any.
//
// # Which replacement
//
// The replacements of one group are interchangeable. A Node that is Ready counts as one if
// its instance is in the group and was not yet when the first instance was detached, if it
// has joined since the notice, and if it replaces no other node. The node with the nearest
// deadline gets the first. What has been given out stands in the records, so a later process
// does not give it out again. That one does not know which instances were there before, and
// might take for a replacement what the group launched for another reason.
//
// # Failures
//
// After throttling and failures of the service it tries again, with backoff, until the node
// is gone. A missing permission is reported once, and tried again every minute while nodes
// need it; those nodes are Unsupported. Where one instance makes a whole call invalid, the
// call is split.
//
// All methods are safe for concurrent use.
package asg
