// Command gpumem-extender answers kube-scheduler's questions about GPU memory:
// where a pod fits, which node is best, and which GPU it gets.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/logging"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpumem-extender:", err)
		os.Exit(1)
	}
}

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
	if err := opts.validate(); err != nil {
		return err
	}
	log, err := logging.New(opts.logLevel, opts.logFormat, stderr)
	if err != nil {
		return err
	}
	logging.BridgeKlog(log)
	log.Info("starting", zap.String("version", version), zap.Any("options", opts.effective()))
	return start(ctx, log, opts)
}
