// Package karpenter makes replacements as NodeClaims of Karpenter, in a fallback NodePool:
// the one that the operator has named, or the best of those that suit. For a node that is only
// at risk it first asks for another spot instance.
//
// Karpenter watches over its own claims, but not over ours. So this package takes care of:
//
//   - the pool's limits, counting those of our claims that its status does not show yet
//     (ledger);
//   - a claim without an instance, which halts all of Karpenter's provisioning: it is
//     deleted after launchTimeout, and the next pool is tried;
//   - consolidation, which could remove an empty replacement before its pods come: the
//     replacement is protected where that is the faster, but no longer than necessary, as
//     Karpenter might move healthy pods onto a protected empty node (keeper);
//   - replacements that are never used, and what a process that died has left behind
//     (keeper).
//
// Everything needed to go on is on the claim and in the interruption's record. The claim's
// name follows from pool and instance, so asking twice is asking once; its label says that
// it is ours; its annotations say what it was made for and how long it is protected. The
// record says which pools were tried.
//
// If Karpenter ends the node itself, as its own interruption queue makes it do, only those
// pods get a replacement for which Karpenter makes none.
//
// The cost grows with the interrupted nodes and not with the cluster: one list at the
// start, and then no call and no watch until the first node that Karpenter made is
// interrupted. From then on there is one watch, of our own NodeClaims. Only if the fallback
// pool has limits are its claims read, all of them, at most every ten seconds and while
// replacements are requested in it.
package karpenter
