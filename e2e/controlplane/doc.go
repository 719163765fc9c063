// Package controlplane gives tests, benchmarks and the demo a real Kubernetes
// control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler,
// Karpenter with its kwok provider, and kwok in the role of the kubelets. There
// are no containers; all else is as in real life: Deployments roll, budgets
// refuse, nodes fail, Karpenter launches and consolidates.
//
//	cluster := controlplane.ForTest(t, controlplane.Options{Karpenter: true})
//	cluster.CreatePools(ctx, controlplane.PoolSpec{Name: "batch", Boot: 40 * time.Second})
//	node, err := cluster.CreateNode(ctx, "batch")
//
// The programs are built from Go modules at the first use, which takes about 10
// minutes on 2 cores: `go run ./e2e/controlplane/cmd/controlplane -build-only`
// does it before a test with a timeout has to. They are kept in a cache outside
// the checkout; a cluster starts in seconds from it. Any number of clusters can
// run beside each other.
//
// A start costs about four seconds of processor time, most of it the apiserver's. Borrow
// spares it: tests of one process use a cluster one after the other, and it is emptied in
// between. With KeepVariable set it even outlives the process, for half an hour.
//
// A cluster runs under a supervisor process, which ends it when the process that
// started it ends, in whatever way; only a kept one goes on. Nothing that a test does can
// leave processes or directories behind.
//
// How long pods take to start and to stop is told by annotations, see Behaviour.
// All methods are safe for concurrent use. Those that wait do so by watching, and
// give up after two minutes unless the context has a deadline.
package controlplane
