// Package forecast tells what would become of every pod if nodes were taken now.
//
// [Of] plays the interruption in virtual time, on a copy of the cluster that was read before.
// Every decision about a doomed pod is [drain.Plan]'s: the engine asks it whenever something has
// changed, as the drain does, and carries out what it says. All else is played: the API server
// that refuses evictions by disruption budgets, the controllers that make successors, the
// scheduler that places them, the kubelets that start and stop pods, the replacement that boots,
// and the deadline, at which the rest is lost.
//
// It is a pure function: it reads no clock and makes no call, and the same input has the same
// forecast. What nobody can know beforehand, such as how long an instance takes to boot, is in
// [Assumptions], each with its source.
package forecast
