// Command gpumem-podstart measures what gpumem costs a node with a real kubelet,
// see package podstart. It ends with a line for each goal that begins with
// "result:".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpumem/gpumem/test/cmd/internal/command"
	"github.com/gpumem/gpumem/test/podstart"
	"github.com/gpumem/gpumem/test/stack"
)

func main() {
	klog.SetLogger(klog.Logger{})
	command.Main("gpumem-podstart", run)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("gpumem-podstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	config := podstart.Config{Log: stack.Progress(stderr)}
	flags.IntVar(&config.Pods, "pods", 20, "pods of each kind: with GPU memory, with a device plugin that decides nothing, without")
	flags.IntVar(&config.Restarts, "restarts", 3, "restarts of the kubelet")
	flags.DurationVar(&config.Rest, "rest", 30*time.Second, "how long the device plugin is looked at with nothing going on")
	file := flags.String("json", "", "write all figures to this file too, as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if config.Pods < 1 || config.Restarts < 1 || config.Rest < time.Second {
		return errors.New("-pods and -restarts: want 1 or more; -rest: a second or more")
	}
	report, err := podstart.Run(ctx, config)
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, report)
	return command.WriteJSON(*file, report)
}
