//go:build !linux

package main

import "context"

// unmapStart is for Linux, where the daemon runs.
func unmapStart(context.Context) {}
