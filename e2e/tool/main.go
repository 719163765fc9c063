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
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"syscall"

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
	err := start(ctx, flags.Arg(0), *dir, flags.Args(), stderr)
	fmt.Fprintln(stderr, "tool:", err)
	return 2
}

// start has this process become the program.
func start(ctx context.Context, name, dir string, args []string, stderr io.Writer) error {
	programs, err := assets.Ensure(ctx, assets.SetOf(name), stderr)
	if err != nil {
		return fmt.Errorf("find the program %q: %w", name, err)
	}
	if err := os.Chdir(cmp.Or(dir, ".")); err != nil {
		return err
	}
	return syscall.Exec(programs.Path(name), args, os.Environ())
}
