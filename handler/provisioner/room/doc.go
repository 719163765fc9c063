// Package room says whether the pods that must leave a node fit on nodes that are there, so
// that no replacement has to be made for them.
//
// It answers as the scheduler would, as far as one look can: by resources, taints, node
// selectors and required node affinity, the zone of volumes, and the anti-affinity of pods that
// are there. A pod whose place depends on other pods counts as one that does not fit. Pods that
// wait for a place come first, and each placed pod goes to the node with the most room, as with
// the scheduler's own default.
//
// A look reads all Nodes and all pods, page by page, and keeps only sums: its cost grows with
// the cluster. So it is shared by a burst, and what one interrupted node was promised is no
// room for the next. There is none before somebody asks.
//
// It is a forecast: other pods may come first, and a node with room may go. So whoever was
// promised room asks again, which costs one read of the pods that have no node. If a pod that
// was promised room is among those, the promise is withdrawn, and a replacement can be made.
package room
