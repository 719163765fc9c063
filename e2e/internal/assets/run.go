package assets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// Run runs a program in the place of this one, and returns its exit code. Ensure is what builds the
// program; dir is where it runs, or empty for here.
func Run(ctx context.Context, ensure func(context.Context, io.Writer) (Set, error), name, dir string, args ...string) int {
	programs, err := ensure(ctx, os.Stderr)
	if err == nil {
		cmd := exec.CommandContext(ctx, programs.Path(name), args...)
		cmd.Dir = dir
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		err = cmd.Run()
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}
