package main

import "runtime/debug"

// tuneMemory trades a little CPU for memory: the daemon idles nearly all the time,
// on every spot node, and its heap is a few MiB.
func tuneMemory() { debug.SetGCPercent(50) }
