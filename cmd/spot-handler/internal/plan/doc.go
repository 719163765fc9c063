// Package plan tells what would become of every pod if nodes were taken now.
//
// [Of] plays the interruption in virtual time, on a copy of the cluster that was read before.
// Every decision about a pod of a lost node is [drain.Plan]'s: the engine asks it whenever something
// has changed, as the drain does, and carries out what it says. All else is played: the API server
// that refuses evictions by disruption budgets, the controllers that make replacement pods, the
// scheduler that places them, the kubelets that start and stop pods, the replacement node that boots,
// and the deadline, at which the rest is lost.
//
// [Of] is a pure function: it reads no clock and makes no call, and the same input has the same
// forecast. What nobody can know beforehand, such as how long an instance takes to boot, is in
// [Assumptions], each with its source.
//
// Which replacement is asked for in a node's place, the daemon's own provisioner decides, over
// clients that note what it creates ([Notes]) instead of creating it. Nodes are asked about one after
// the other: what one takes of a pool's limits, or of the room on other nodes, is gone for the next.
package plan
