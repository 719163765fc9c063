// Package karpenter makes replacements as NodeClaims of Karpenter, in a fallback
// NodePool: the one that the operator has named, or the best of those that suit.
//
// Nobody but us minds what Karpenter minds of its own claims, so that this does:
//
//   - the pool's limits, with our own claims that its status does not show yet (ledger);
//   - a claim without an instance, which halts all of Karpenter's provisioning: it is
//     deleted after launchTimeout, and the next pool asked;
//   - consolidation, which takes an empty replacement away before its pods come: it is
//     protected where that would be faster than we are, and no longer than it has to
//     be, as Karpenter may move healthy pods onto a protected empty node (keeper);
//   - what is never used, and what a process that died has left behind (keeper).
//
// All that is needed to go on is on the claim and in the interruption's record: the
// claim's name follows from pool and instance, so that to ask twice is to ask once;
// its label says that it is ours; its annotations say what it was made for and until
// when it is protected; the record says which pools came to nothing.
//
// Where Karpenter ends the node itself, as its own interruption queue has it do, only
// those pods get a replacement for which it makes none.
//
// The cost grows with the interrupted nodes and not with the cluster: one list at
// the start, and then no call and no watch before the first node that Karpenter made
// is interrupted. From then on there is one watch, over our own NodeClaims. Only where the
// fallback pool has limits are its claims read, all of them, every ten seconds at the most
// and while replacements are asked for in it.
package karpenter
