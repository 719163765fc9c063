// Command controlplane runs a real Kubernetes control plane on this machine until
// its standard input ends or it is interrupted.
//
//	go run ./e2e/controlplane/cmd/controlplane
//
// It runs etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok (in
// the role of the kubelets) and Karpenter with its kwok provider. All are built
// from Go modules at the first start, which takes minutes, and kept in a cache
// outside the checkout. Once they serve it prints one line of JSON with what a
// client needs to know: the path of a kubeconfig (an administrator's), of a
// kubectl, of the directory with the logs, and the ids of the processes.
//
// With -reusable, a line "reset" on standard input empties it: all objects are deleted that
// were not there when it was ready, and Karpenter starts again. The line of JSON is printed
// again then.
//
// When it ends, for whatever reason, every process ends with it, and the
// directory is removed.
//
// Flags:
//
//	-karpenter    run Karpenter (default true)
//	-audit        have the apiserver write an audit log, named in the JSON as auditLog
//	-endpoints    write the addresses of Services (default true)
//	-dir          directory for all files; the logs are left in it
//	-heartbeat    how often nodes say that they live; slower is cheaper for
//	              thousands of them, and a node that is dead is noticed after five
//	              of them (default 10s)
//	-reusable     obey "reset"
//	-keep         socket: serve one client after the other there, be empty for each, and
//	              end when nobody has come for half an hour, or by -end-kept
//	-end-kept     end those that -keep has started for this checkout
//	-build-only   fill the cache and end
//
// Environment:
//
//	SPOT_HANDLER_E2E_CACHE        where the cache is, instead of the user's cache directory
//	SPOT_HANDLER_E2E_KUBERNETES   an older version of Kubernetes, of 1.33 to 1.35
//	SPOT_HANDLER_E2E_KARPENTER    an older version of Karpenter, such as 1.0
//	KUBEBUILDER_ASSETS            a directory from which etcd, kubectl and, unless a version is
//	                              chosen, kube-apiserver are taken, if it has them
//	GOFLAGS and others            are passed on to the go command
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"spot-handler/e2e/controlplane/internal/supervisor"
	"spot-handler/e2e/internal/assets"
)

// keptUnused is how long a control plane is kept for the next client.
const keptUnused = 30 * time.Minute

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("controlplane", flag.ContinueOnError)
	flags.SetOutput(stderr)
	options := supervisor.Options{Progress: stderr}
	flags.BoolVar(&options.Karpenter, "karpenter", true, "run Karpenter")
	flags.BoolVar(&options.Audit, "audit", false, "have the apiserver write an audit log")
	flags.BoolVar(&options.Endpoints, "endpoints", true, "write the addresses of Services")
	flags.StringVar(&options.Dir, "dir", "", "`directory` for all files; the logs are left in it")
	flags.DurationVar(&options.Heartbeat, "heartbeat", 10*time.Second, "how often nodes say that they live")
	reusable := flags.Bool("reusable", false, "empty the control plane at each line `reset` of standard input")
	keep := flags.String("keep", "", "`socket` to serve one client after the other at")
	endKept := flags.Bool("end-kept", false, "end those that are kept")
	buildOnly := flags.Bool("build-only", false, "fill the cache and end")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if options.Heartbeat < time.Second || flags.NArg() > 0 {
		fmt.Fprintln(stderr, "controlplane: -heartbeat must be 1s or more, and there are no arguments")
		return 2
	}

	// If a client has gone, our write to its pipe must not kill us before we have ended
	// in order. Not signal.Ignore: the components would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	switch {
	case *endKept:
		program, err := assets.Supervisor(ctx)
		if err != nil {
			fmt.Fprintln(stderr, "controlplane:", err)
			return 1
		}
		ended, err := supervisor.EndKept(ctx, filepath.Dir(program))
		if err != nil {
			fmt.Fprintln(stderr, "controlplane:", err)
			return 1
		}
		fmt.Fprintf(stderr, "control planes that have ended: %d\n", ended)
		return 0
	case *keep != "":
		if err := supervisor.Keep(ctx, *keep, keptUnused, options); err != nil {
			fmt.Fprintln(stderr, "controlplane:", err)
			return 1
		}
		return 0
	case *buildOnly:
		if _, err := assets.Ensure(ctx, stderr); err != nil {
			fmt.Fprintln(stderr, "controlplane:", err)
			return 1
		}
		return 0
	}
	// Whoever starts us holds the other end. If it can no longer close it, the kernel
	// does.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resets := make(chan struct{})
	if *reusable {
		options.Reset = resets
	}
	go func() {
		defer cancel()
		for lines := bufio.NewScanner(stdin); lines.Scan(); {
			if *reusable && lines.Text() == "reset" {
				select {
				case resets <- struct{}{}:
				case <-ctx.Done():
				}
			}
		}
	}()

	err := supervisor.Supervise(ctx, options, func(info supervisor.Info) error {
		return json.NewEncoder(stdout).Encode(info)
	})
	if err != nil {
		fmt.Fprintln(stderr, "controlplane:", err)
		return 1
	}
	return 0
}
