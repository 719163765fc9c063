// Package handler takes interruption notices and sees each interrupted node through to its end.
//
//	Accept ─► record on the Node ─► reconcile: Replacing ─► Draining ─► Released
//
// [Handler.Accept] is the fast lane, called by the sources: it finds the Node in memory, judges
// the notice ([interruption.Judge]) and writes the record, the taint and the cordon with one
// patch. It waits for nothing else and may be called from any number of goroutines and
// replicas: the record merges, so the same notice twice changes nothing.
//
// [Handler.Run] reconciles Nodes that carry a record, in one process at a time. It is
// level-triggered: all that it has to know is on the Node or can be read from the cluster. So
// if a process is killed, at whatever point, its successor carries on. A node that waits for
// its replacement or for a pod occupies nothing but a timer or a watch.
//
// Other work has packages of its own: interruption judges, marks makes the patches, turns says
// which recommended node comes next, lifecycle answers the hooks of Auto Scaling groups,
// provisioner makes replacements, notify tells people, and dryrun says what would be done.
package handler
