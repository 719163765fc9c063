// Package drain moves the pods off nodes that are about to end: it decides which
// pods, in what order and by when, evicts them and watches them go.
//
// [Plan] is a pure function and the only place that decides. [Drainer] carries
// plans out for any number of nodes at once. It keeps one watch per draining node
// and nothing else that waits: a pod that has to be held or that a disruption
// budget refuses is a timer, never a goroutine or a worker. Evictions of all nodes
// share one queue, ordered by each pod's latest safe start.
//
// A Drainer holds no state that has to survive. A new process that is asked to
// drain the same node sees which pods are left and goes on; pods that are
// terminating are only waited for, and every eviction carries the pod's UID, so
// that nothing is evicted twice.
package drain
