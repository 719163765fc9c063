// Package reality holds the simulator to a real control plane. The same scenes are played in both: what becomes of
// each pod and node must be the same, at the same time. Where it is not, the simulator is wrong, or the difference is
// one that the comment of package sim lists.
//
// A scene begins as the real cluster stands once all is ready: the simulator starts with the same pods, on the same
// nodes and of the same age. From then on each has its own scheduler, controllers and kubelets.
package reality
