package snapshot

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/replay"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Options are those of snapshot.
type Options struct {
	*cmdutil.Factory
	output string
}

// NewCommand returns the command that writes a cluster for gpumem-sim.
func NewCommand(f *cmdutil.Factory) *cobra.Command {
	o := &Options{Factory: f, output: "json"}
	cmd := &cobra.Command{
		Use:   "snapshot [-o json]",
		Short: "Write nodes and pods for gpumem-sim to replay",
		Long: `Write what nodes offer and what pods ask for, for gpumem-sim to replay.

It contains the names of nodes and pods, GPU models and amounts, and nothing
else of the cluster. GPUs that are unhealthy or cordoned are left out, with a
warning.`,
		Example: "  kubectl inspect gpumem snapshot > cluster.json\n  gpumem-sim replay --snapshot cluster.json --html report.html",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) },
	}
	f.SayNamespace(cmd, cmdutil.NamespaceOfAll)
	cmd.Flags().StringVarP(&o.output, "output", "o", o.output, "Output format: json")
	return cmd
}

// Complete has nothing to do.
func (o *Options) Complete([]string) error { return nil }

// Validate says what is wrong with the format.
func (o *Options) Validate() error {
	if o.output != "json" {
		return fmt.Errorf("--output is %q, want json", o.output)
	}
	return nil
}

// Run writes the snapshot.
func (o *Options) Run(ctx context.Context) error {
	r, err := o.Connect()
	if err != nil {
		return err
	}
	nodes, facts, err := r.Load(ctx, cluster.Selection{})
	if err != nil {
		return err
	}
	if err := cluster.NeedsPods("what pods ask for is not known", facts); err != nil {
		return err
	}
	waiting := make(map[string]placement.Request)
	for _, w := range facts.Waiting {
		if !w.Request.Empty() {
			waiting[w.Pod.String()] = w.Request
		}
	}
	if err := writeJSON(o.Out, replay.NewSnapshot(nodes, waiting)); err != nil {
		return err
	}
	for _, n := range nodes {
		for _, d := range n.Devices {
			if !d.Status.TakesPods() {
				fmt.Fprintf(o.ErrOut, "warning: GPU%d of node %s is left out: it is %s\n", d.Index, table.Clean(n.Name), table.Clean(reasons.Status(d.Status)))
			}
		}
	}
	return o.Complain(inspect.New(nodes, facts).Problems)
}

// writeJSON writes what is no object of an API, so that people can read it too.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
