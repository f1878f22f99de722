// Command gpumem-sim places the pods of a cluster by the policies of gpumem and by those that others
// have, so that its users can choose one, and see what more nodes would bring.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

func main() {
	// It holds nothing that a signal must not cut short.
	if err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gpumem-sim:", err)
		os.Exit(1)
	}
}

// run is main with its surroundings passed in.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	cmd := &cobra.Command{
		Use:   "gpumem-sim",
		Short: "Replay pods through placement policies",
		Long: `Replay pods through the placement policies of gpumem and of others.

The policies of gpumem are the extender's own code, with the scores that it sends to
kube-scheduler. A replay is a simulation: it says nothing of any real GPU.`,
		Version: version, SilenceUsage: true, SilenceErrors: true,
	}
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.AddCommand(replayCommand())
	return cmd.ExecuteContext(ctx)
}
