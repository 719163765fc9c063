// Package provisioner asks for the capacity that replaces an interrupted node, follows it
// until it is Ready, and hands the interrupted node back to what made it. A [Backend] makes
// the replacement, each in a package of its own; [Provisioner] asks the one that suits the
// node.
//
//	          request accepted      instance exists       node initialized
//	(nothing) ────────────► Requested ────────► Launched ────────► Ready
//	     │                      │                  │
//	     │                      └────────┬─────────┘
//	     ▼                               ▼
//	Unsupported                        Failed
//
// What was asked for is kept only in the interruption's record and in the cluster: any
// process can go on from there. [Provisioner.Request], [Provisioner.Choose] and
// [Provisioner.Release] are idempotent, safe for concurrent use, and never wait for a
// machine: Request says how far the replacement has come, and the backend's notify function
// says when to ask again. Errors are transient, and callers retry them; whatever would fail
// again is a state with a reason.
package provisioner
