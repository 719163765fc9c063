// Package hostile has a tenant with the built-in edit role in one namespace write the largest,
// oddest and most numerous objects that the API server takes, of every kind that the daemon or a
// command reads, while 50 nodes are drained. Another tenant's service has to lose no ready pod,
// no process may grow past its bound, and no command prints a control character, a hostile name
// that a shell would run, or a grant for an account that nobody named.
//
//	make hostile SEED=7 MINUTES=30
//
// A round is one control plane. Its mode, and what the tenant writes, are drawn from the seed.
package hostile
