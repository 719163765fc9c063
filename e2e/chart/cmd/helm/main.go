// Command helm runs the Helm that the tests use, with the arguments that it is given:
//
//	go run ./e2e/chart/cmd/helm lint deploy/chart
//
// It is built from its Go module at the first start, which takes minutes, and kept in a
// cache outside the checkout. With -3 as the first argument it is Helm 3 instead of 4.
package main

import (
	"context"
	"os"

	"spot-handler/e2e/internal/assets"
)

func main() { os.Exit(run(context.Background(), os.Args[1:])) }

func run(ctx context.Context, args []string) int {
	name := assets.HelmV4
	if len(args) > 0 && args[0] == "-3" {
		name, args = assets.HelmV3, args[1:]
	}
	return assets.Run(ctx, assets.EnsureHelm, name, "", args...)
}
