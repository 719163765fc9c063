// Command tool builds sets of programs that modules below e2e pin, which is for before tests with a
// timeout:
//
//	go run ./e2e/tool -build controlplane helm
//
// The first time takes minutes. They are kept in a cache outside the checkout.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"spot-handler/e2e/internal/assets"
)

func main() {
	build := flag.Bool("build", false, "build the sets of programs that the arguments name")
	flag.Parse()
	if !*build {
		flag.Usage()
		os.Exit(2)
	}
	for _, set := range flag.Args() {
		if _, err := assets.Ensure(context.Background(), set, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, "tool:", err)
			os.Exit(1)
		}
	}
}
