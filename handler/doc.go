// Package handler takes interruption notices and sees each interrupted node through
// to its end.
//
//	Accept ─► record on the Node ─► reconcile: Replacing ─► Draining ─► Released
//
// [Handler.Accept] is the fast lane, called by the sources: it finds the Node in
// memory and writes the record, the taint and the cordon with one patch. It waits
// for nothing else and may be called from any number of goroutines and replicas: the
// record merges, so that the same notice twice changes nothing.
//
// [Handler.Run] reconciles Nodes that carry a record, in one process at a time. It
// is level-triggered: all that it has to know stands on the Node or can be read from
// the cluster, so that a process that was killed at any point is followed by one
// that goes on. A node that waits, for its replacement or for a pod, occupies
// nothing but a timer or a watch.
//
// A lifecycle hook, at which an Auto Scaling group waits until the node is drained, is part of
// the record. The calls about it are made beside the workers, see [Hooks]; hooks without a Node
// to drain are settled in Accept.
//
// [DryRun] accepts notices too, changes nothing and says what Handler would do.
package handler
