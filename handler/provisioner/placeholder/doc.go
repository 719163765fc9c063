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
// It works with Cluster Autoscaler and with whatever else makes nodes for pending pods,
// without talking to it. Each pod that must leave, and whose successor is not made before
// it leaves, has one placeholder: with its requests, as the scheduler counts them, with its
// node selector, required node affinity and tolerations, and with a required affinity to
// the fallback nodes on top. Where the placeholder fits, the successor fits. Pods without a
// successor have no placeholder.
//
// # Who has the room
//
// A placeholder goes when its pod's successor comes: when the pod begins to terminate, if a
// ReplicaSet makes the successor at that moment, else when the pod is gone. So at any time
// either the placeholder or the successor asks for the room, and an autoscaler counts it
// once. Between the two, only a pod that could have preempted the placeholder anyway can
// take the room, or one of even lower priority, which the successor preempts. If the
// successor comes first, the scheduler preempts a placeholder for it; placeholders have no
// grace period, so it does not have to wait. An autoscaler does not remove an emptied node
// within minutes.
//
// A placeholder that is gone is never made again, whatever became of it. Its name follows
// from instance and pod, so there are never more than were asked for at the start, even
// after redelivery, a restart or a change of the leader. (The exception is one that was lost
// in the seconds between the end of a process that had not yet recorded what it had made,
// and the start of the next.) In a burst, a successor might preempt the placeholder of
// another node's pod while its own is being removed. Together they still ask for the same
// room; making the lost one again would ask for more while the other one lasts.
//
// # Never left behind
//
// The placeholders of a node belong to a PodTemplate, which belongs to the Node: the garbage
// collector removes them together with the Node, whatever has become of us. (They do not
// belong to the Node itself, as Karpenter would take them for static pods.) They end by
// themselves at the deadline, or after [patience] if there is none. A running Backend
// removes those whose node is gone or no longer interrupted, including those that an
// earlier process made.
package placeholder
