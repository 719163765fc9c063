// Command node-termination-handler runs the aws-node-termination-handler that stories run beside
// ours, with the arguments that it is given:
//
//	go run ./e2e/foreign/cmd/node-termination-handler [-build-only | ARGUMENT...]
//
// It is built from its Go module at the first start, which takes minutes, and kept in a cache
// outside the checkout.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"spot-handler/e2e/internal/assets"
)

func main() { os.Exit(run(context.Background(), os.Args[1:])) }

func run(ctx context.Context, args []string) int {
	if !slices.Equal(args, []string{"-build-only"}) {
		return assets.Run(ctx, assets.EnsureHandler, assets.NodeTerminationHandler, "", args...)
	}
	if _, err := assets.EnsureHandler(ctx, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", assets.NodeTerminationHandler, err)
		return 1
	}
	return 0
}
