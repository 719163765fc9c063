// Command tool runs a program that a module below e2e pins, with the arguments that it is given:
//
//	go run ./e2e/tool staticcheck ./...
//	go run ./e2e/tool -C e2e/aws staticcheck ./...
//	go run ./e2e/tool helm4 lint deploy/chart
//
// With -build it only builds sets of programs, which is for before tests with a timeout:
//
//	go run ./e2e/tool -build controlplane helm
//
// Programs are built from their Go modules at the first start, which takes minutes, and kept in a
// cache outside the checkout.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"

	"spot-handler/e2e/internal/assets"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stderr)) }

func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("tool", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("C", "", "`directory` to run the program in, such as that of another module")
	build := flags.Bool("build", false, "build the sets of programs that the arguments name")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *build {
		for _, set := range flags.Args() {
			if _, err := assets.Ensure(ctx, set, stderr); err != nil {
				fmt.Fprintln(stderr, "tool:", err)
				return 1
			}
		}
		return 0
	}
	name := flags.Arg(0)
	if assets.SetOf(name) == "" {
		fmt.Fprintf(stderr, "tool: no module below e2e pins a program %q\n", name)
		return 2
	}
	err := start(ctx, name, *dir, flags.Args()[1:], stderr)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintf(stderr, "tool: %s: %v\n", name, err)
		return 1
	}
	return 0
}

func start(ctx context.Context, name, dir string, args []string, stderr io.Writer) error {
	programs, err := assets.Ensure(ctx, assets.SetOf(name), stderr)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, programs.Path(name), args...)
	cmd.Dir = dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}
