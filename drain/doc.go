// Package drain moves the pods off nodes that are about to end: it decides which pods
// leave, in what order and by when, evicts them, and watches them go.
//
// [Plan] is a pure function, and nothing else decides. [Drainer] carries out the plans of
// any number of nodes at once. It keeps one watch for each draining node, one for the
// disruption budgets of each namespace with pods to move, and two for each Deployment
// whose pods are surged. Nothing else waits: a pod that is held, or refused by a
// disruption budget, is a timer or a watch event, never a goroutine or a worker.
//
// All nodes share one queue of requests, ordered by when each pod has to start leaving. As
// many are under way as the API server's priority and fairness lets through; one that is
// not answered for seconds makes room for another. A task asks again for its pod's
// decision when its turn comes. A node is planned again when something that its plan reads
// has changed: at once, or, where pods only go on leaving, within half a second and once
// for all of them.
//
// A Drainer holds no state that has to survive. A new process that is asked to drain the
// same node sees which pods are still there and goes on. It only waits for pods that are
// terminating, surged pods carry a label that says so, and every request carries the
// pod's UID, so nothing is done twice.
package drain
