// Package karpenter makes replacements as NodeClaims of Karpenter, in a fallback
// NodePool.
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
package karpenter
