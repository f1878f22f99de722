// Command gpumem-release makes the parts of a release in a folder. See package
// release.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/gpumem/gpumem/test/release"
)

func main() {
	r := release.Release{Log: os.Stdout}
	flag.StringVar(&r.Root, "root", "..", "the checkout")
	flag.StringVar(&r.Out, "out", "../dist", "where to put what is made; what is there is removed")
	flag.StringVar(&r.Version, "version", "v0.0.0-dev", "the version, with its v")
	flag.BoolVar(&r.All, "all", false, "fail where a part cannot be built on this machine, instead of leaving it out")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := r.Make(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpumem-release:", err)
		os.Exit(1)
	}
}
