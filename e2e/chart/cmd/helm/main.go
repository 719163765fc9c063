// Command helm runs the Helm that the tests use, with the arguments that it is given:
//
//	go run ./e2e/chart/cmd/helm lint deploy/chart
//
// It is built from its Go module at the first start, which takes minutes, and kept in a
// cache outside the checkout. With -3 as the first argument it is Helm 3 instead of 4.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"spot-handler/e2e/internal/assets"
)

func main() { os.Exit(run(context.Background(), os.Args[1:])) }

func run(ctx context.Context, args []string) int {
	programs, err := assets.EnsureHelm(ctx, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		return 1
	}
	name := assets.HelmV4
	if len(args) > 0 && args[0] == "-3" {
		name, args = assets.HelmV3, args[1:]
	}
	cmd := exec.CommandContext(ctx, programs.Path(name), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		return 1
	}
	return 0
}
