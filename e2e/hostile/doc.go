// Package hostile has a tenant with the built-in edit role in one namespace write the largest,
// oddest and most numerous objects that the API server takes, of every kind that the daemon or a
// command reads, while 50 nodes are drained. Another tenant's service has to lose no ready pod, and
// has to be off its nodes and notified in time; no process may grow past its bound; and no command
// prints a control character, a hostile name that a shell would run, or a grant for an account that
// nobody named. On a slow machine a notice comes up to six minutes ahead, more than EC2 gives. If even
// that is too little for replacement pods to become ready, the service may lack the one pod that its PDB
// lets go.
//
//	make hostile SEED=7 MINUTES=30
//
// A round is one control plane. Its mode, and what the tenant writes, are drawn from the seed.
//
// What the tenant does to the control plane itself is not what is tested, and is kept within what that
// bears on two processors, as quotas and admission policies do in a cluster. Three budgets with 300,000
// values in their selectors take all of kube-controller-manager, which then updates no budget of the
// cluster for a minute, and 60% of the API server, which reads all budgets of a namespace for each
// eviction there. So selectors have at most 100 values, and the budgets of a round 130 KB. A round in
// which kube-controller-manager still takes 10 s to see a change of somebody else's budget, and five
// times as long as before the daemons started, fails, and says so. What has failed is repeated in the
// last lines of the output.
package hostile
