package lists

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/cli/listing"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/printers"
)

// GPUs are the options of the command gpus.
type GPUs struct {
	listing.Flags

	nodes []string // empty: all
}

// NewGPUsCommand returns the command gpus.
func NewGPUsCommand(f *cmdutil.Factory) *cobra.Command {
	o := &GPUs{Flags: listing.Flags{Factory: f}}
	cmd := &cobra.Command{
		Use:   "gpus [NODE...] [-l SELECTOR] [-o FORMAT] [-w]",
		Short: "Show GPUs with their allocated and used memory",
		Example: `  # The fullest GPUs last
  kubectl inspect gpumem gpus --sort-by=.requested.MiB

  # The GPUs of one node, with UUIDs, as they change
  kubectl inspect gpumem gpus gpu-a -o wide -w`,
		ValidArgsFunction: f.CompleteNodes,
		RunE:              func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) },
	}
	o.Add(cmd, "the GPUs of nodes", ".node", ".requested.MiB")
	o.AddWatch(cmd)
	return cmd
}

// Complete parses the node names and connects to the cluster.
func (o *GPUs) Complete(args []string) error {
	o.nodes = cmdutil.NodeNames(args)
	return o.Flags.Complete()
}

// Run prints the list.
func (o *GPUs) Run(ctx context.Context) error {
	return listing.Show(ctx, &o.Flags, listing.View[printers.GPURow]{
		Kind: "GPUList",
		Read: func(ctx context.Context) (inspect.Report, cluster.Usage, error) {
			report, err := o.Report(ctx, o.Cluster, cluster.Selection{Names: o.nodes, Labels: o.Selector})
			return report, o.Cluster.Usage(ctx), err
		},
		Rows:    func(r inspect.Report, u cluster.Usage) []printers.GPURow { return printers.GPURows(r, u.GPUs) },
		Columns: printers.GPUColumns,
		Name:    func(g printers.GPURow) string { return fmt.Sprintf("gpu/%s/%d", g.Node, g.Index) },
		ID:      func(g printers.GPURow) string { return g.Node + "/" + string(g.UUID) },
	})
}
