// Package early keeps notices about instances that are no Node yet, and has them recorded as
// soon as they are. Otherwise the pods that wait for such a Node would be put on it, and would
// have to leave at once.
//
//	source ─► early.Accepter ─► the next Accepter ─┬─ anything else ► settled
//	                  ▲                            └─ Unknown ─┬─ kept: ErrNoNode, the source keeps
//	                  │                                        │        the message and asks again
//	                  └───── the Node appears ◄────────────────┘
//
// A notice is kept until its deadline, but for no longer than a Node can take to register. What
// is kept is bounded; when it is full, those go first that matter least. Then, and only then,
// somebody who knows machines that are about to register, such as Karpenter by its NodeClaims,
// is asked which of the instances are ours: those stay.
//
// What is kept is lost when the process ends. So the source must not let go of a message whose
// notice is kept: another process receives it again.
package early
