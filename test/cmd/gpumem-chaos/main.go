// Command gpumem-chaos runs gpumem on a real cluster on this machine and kills
// its parts while pods come and go, see package chaos.
//
//	gpumem-chaos             chaos for ten minutes
//	gpumem-chaos failover    the leading scheduler killed, then frozen, in bursts of pods, 500 in all
//
// Each ends with a line that begins with "result:", and fails when a promise was
// broken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpumem/gpumem/test/chaos"
	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/cmd/internal/command"
	"github.com/gpumem/gpumem/test/stack"
)

func main() {
	klog.SetLogger(klog.Logger{}) // a client whose server is killed has much to say
	command.Main("gpumem-chaos", run)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("gpumem-chaos", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: gpumem-chaos [flags] [failover]")
		flags.PrintDefaults()
	}
	config := chaos.Config{Name: "chaos", Log: stack.Progress(stderr)}
	flags.Uint64Var(&config.Seed, "seed", rand.Uint64N(1<<32), "seed of the random choices (default: another each time)")
	flags.BoolVar(&config.KeepLogs, "keep-logs", false, "keep the logs of all parts, also when all is well")
	duration := flags.Duration("duration", 10*time.Minute, "how long the chaos goes on, rests included")
	nodes := flags.Int("nodes", 3, "number of nodes of the chaos")
	pods := flags.Int("pods", 500, "number of pods of the failover")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := cluster.CheckHost(); err != nil {
		return fmt.Errorf("this machine cannot run the cluster: %w", err)
	}
	switch {
	case flags.NArg() == 0:
		if *nodes < 1 {
			return fmt.Errorf("-nodes=%d: want at least 1", *nodes)
		}
		report, err := chaos.Run(ctx, chaos.RunConfig{Config: config, Duration: *duration, Nodes: *nodes})
		return finish(stdout, report, report.OK(), err)
	case flags.NArg() == 1 && flags.Arg(0) == "failover":
		report, err := chaos.Failover(ctx, chaos.FailoverConfig{Config: config, Pods: *pods})
		return finish(stdout, report, report.OK(), err)
	default:
		flags.Usage()
		return fmt.Errorf("what is %q?", flags.Args())
	}
}

func finish(stdout io.Writer, report fmt.Stringer, ok bool, err error) error {
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, report)
	if !ok {
		return errors.New("promises were broken")
	}
	return nil
}
