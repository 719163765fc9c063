// Package drain moves the pods off nodes that are about to end: it decides which
// pods, in what order and by when, evicts them and watches them go.
//
// [Plan] is a pure function and the only place that decides. [Drainer] carries
// plans out for any number of nodes at once. It keeps one watch per draining node, one
// for the disruption budgets of each namespace with pods to move and two for each
// Deployment whose pods are surged, and nothing else that waits: a pod that has to be
// held or that a disruption budget refuses is a timer or a watch event, never a goroutine
// or a worker. Requests of all nodes share one queue, ordered by when each pod has to
// begin to leave, of which as many are under way as the API server's priority and
// fairness lets through; one that is not answered for seconds makes room for another. A
// task asks for its pod's decision anew when its turn comes. A node is planned anew when
// something that plans read has changed: at once, but within half a second and once for
// all of them where pods only go on leaving.
//
// A Drainer holds no state that has to survive. A new process that is asked to
// drain the same node sees which pods are left and goes on; pods that are
// terminating are only waited for, surged pods carry a label that says so, and every
// request carries the pod's UID, so that nothing is done twice.
package drain
