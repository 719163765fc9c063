// Package provisioner asks for the capacity that replaces an interrupted node,
// follows it until it is Ready, and hands the interrupted node back to what made
// it.
//
//	          POST accepted        instance exists       node initialized
//	(nothing) ────────────► Requested ────────► Launched ────────► Ready
//	     │                      │                  │
//	     │                      └────────┬─────────┘
//	     ▼                               ▼
//	Unsupported                        Failed
//
// What is asked for is kept nowhere but in the interruption's record and in the
// cluster: any process can go on from there. [Provisioner.Request],
// [Provisioner.Choose] and [Provisioner.Release] are idempotent, safe for
// concurrent use, and never wait for a machine: Request says how far the
// replacement is, and Options.Notify says when to ask again. Their callers retry
// errors, which are transient; whatever would fail again is a state with a
// reason.
//
// A replacement is not protected from Karpenter's consolidation: the annotation
// karpenter.sh/do-not-disrupt would have to be taken from the claim and from its
// Node again, and whoever is to do that may never come to it, which would hold the
// node for good. Karpenter leaves a new node alone for at least 15 s, measured 17,
// and the pods that wait for it land in the first of them.
//
// The cost grows with the interrupted nodes and not with the cluster: no call is
// made and no watch is started before the first node that Karpenter made is
// interrupted. From then on there is one watch, over our own NodeClaims.
package provisioner
