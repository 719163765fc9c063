// Command lint runs a linter that e2e/lint/binaries pins, with the arguments that it is
// given:
//
//	go run ./e2e/lint/cmd/lint staticcheck ./...
//	go run ./e2e/lint/cmd/lint -C e2e/aws staticcheck ./...
//	go run ./e2e/lint/cmd/lint actionlint
//
// -C is the directory to run it in, such as that of another module.
//
// Both are built from their Go modules at the first start, which takes a minute or two,
// and kept in a cache outside the checkout.
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
	dir := ""
	if len(args) > 1 && args[0] == "-C" {
		dir, args = args[1], args[2:]
	}
	if len(args) == 0 || !slices.Contains([]string{assets.Staticcheck, assets.Actionlint}, args[0]) {
		fmt.Fprintf(os.Stderr, "lint: want [-C DIR] and %s or %s, with its arguments\n", assets.Staticcheck, assets.Actionlint)
		return 2
	}
	return assets.Run(ctx, assets.EnsureLinters, args[0], dir, args[1:]...)
}
