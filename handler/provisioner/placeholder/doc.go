// Package placeholder has an autoscaler make the room that displaced pods need: it
// asks with pods that request as much, do nothing and have the lowest priority.
//
//	node interrupted      a pod leaves its node      drain over
//	       │                      │                      │
//	       ▼                      ▼                      ▼
//	  PodTemplate ──owns──► its placeholder          PodTemplate deleted,
//	  owned by the Node     deleted: its successor   and with it what is left
//	                        has the room
//
// It works with Cluster Autoscaler and with whatever else makes nodes for pending
// pods, and needs no word with it. Each pod that must leave, and whose successor is
// not made before it leaves, has one placeholder: with its requests, as the scheduler
// counts them, with its own node selector, required node affinity and tolerations,
// and with a required affinity to the fallback nodes on top. Where the placeholder
// fits, the successor fits. Pods without a successor have none.
//
// # Who has the room
//
// A placeholder goes when its pod's successor comes: when the pod begins to
// terminate, where a ReplicaSet makes the successor at that moment, else when it is
// gone. So at any time either the pod's placeholder or its successor asks for the
// room, and an autoscaler counts it once. In the moment between the two the room can
// only be taken by a pod that could have preempted the placeholder as well, or by one
// of even lower priority, which the successor preempts. Should the successor be the
// first to come, the scheduler preempts a placeholder for it; these have no grace
// period, so that nothing is waited for. An autoscaler does not take an emptied node
// back within minutes.
//
// A placeholder that is gone is never made anew, whoever has taken it: there are at
// most as many as were asked for at the start, also over redelivery, restart and
// change of the leader, as their names are made of instance and pod. (But for one that
// was taken in the seconds between the end of a process that had not yet written into
// the record what it had made, and the start of the next.) In a burst a
// successor may preempt the placeholder of another node's pod, while its own is
// removed. The room that both ask for is the same as before; to make the lost one
// again would ask for more, as long as the other is there.
//
// # Never left behind
//
// The placeholders of a node belong to a PodTemplate, which belongs to the Node: the
// garbage collector removes them with it, whatever has become of us. (They do not
// belong to the Node itself, as Karpenter takes pods that do for static ones.) They
// end by themselves at the deadline, or after [patience] where there is none. A
// Backend that runs removes those whose node is gone or no longer interrupted, also
// what an earlier process has left.
package placeholder
