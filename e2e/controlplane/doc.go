// Package controlplane gives tests, benchmarks and the demo a real Kubernetes control
// plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, Karpenter with
// its kwok provider, and kwok in the role of the kubelets. There are no containers.
// Everything else is as in real life: Deployments roll, budgets refuse, nodes fail,
// Karpenter launches and consolidates.
//
//	cluster := controlplane.ForTest(t, controlplane.Options{Karpenter: true})
//	cluster.CreatePools(ctx, controlplane.PoolSpec{Name: "batch", Boot: 40 * time.Second})
//	node, err := cluster.CreateNode(ctx, "batch")
//
// The programs are built from Go modules on first use, which takes about 10 minutes on 2
// cores. Run `go run ./e2e/tool -build controlplane` beforehand to keep that out of a test
// with a timeout. They are kept in a cache outside the checkout; from
// it, a cluster starts in seconds. Any number of clusters can run in parallel.
//
// A start costs about four seconds of processor time, most of it the apiserver's. Borrow
// spares it: tests of one process use a cluster one after the other, and it is emptied in
// between.
//
// On Linux, the kernel ends a cluster when the process that started it ends, however it
// ends, and the next one to start removes its directory.
//
// Annotations say how long pods take to start and to stop, see Behaviour. All methods are
// safe for concurrent use. Those that wait do so by watching, and give up after five
// minutes unless the context has a deadline.
package controlplane
