// Command gpumem-extender answers kube-scheduler's questions about GPU memory:
// where a pod fits, which node is best, and which GPU it gets.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/process/daemon"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(daemon.Main("gpumem-extender", run)) }

// run is main with its surroundings passed in.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "cleanup" {
		return runCleanup(ctx, args[1:], stdout, stderr)
	}
	opts := defaultOptions()
	switch err := opts.parse(args, stdout); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	case opts.showVersion:
		fmt.Fprintln(stdout, version)
		return nil
	}
	conf, err := opts.complete()
	if err != nil {
		return err
	}
	log, err := opts.log.New(stderr)
	if err != nil {
		return err
	}
	daemon.BridgeKlog(log)
	log.Info("starting", zap.String("version", version), zap.Any("options", daemon.Effective(opts.flags)))
	return start(ctx, log, conf)
}
