package cordon

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
)

// Options are those of cordon and uncordon.
type Options struct {
	*cmdutil.Factory
	cordoned bool // what the GPU is to be

	cluster *cluster.Reader
	nodes   []string
	which   string // GPU
}

// NewCommand returns the command cordon.
func NewCommand(f *cmdutil.Factory) *cobra.Command {
	return newCommand(f, "cordon", "Keep new pods off a GPU", `Keep new pods off a GPU. Those that are on it stay.

The GPU is named in an annotation of its node. Its capacity stays what it was, and
containers on it can restart.`, true)
}

// NewUncordonCommand returns the command uncordon.
func NewUncordonCommand(f *cmdutil.Factory) *cobra.Command {
	return newCommand(f, "uncordon", "Let pods onto a GPU again", "Let pods onto a GPU again.", false)
}

func newCommand(f *cmdutil.Factory, use, short, long string, cordoned bool) *cobra.Command {
	o := &Options{Factory: f, cordoned: cordoned}
	cmd := &cobra.Command{
		Use:               use + " NODE GPU",
		Short:             short,
		Long:              long,
		Example:           "  kubectl inspect gpumem " + use + " gpu-a 3",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: f.CompleteNodeAndGPU,
		RunE:              func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) },
	}
	f.SayNamespace(cmd, cmdutil.NamespaceOfAll)
	return cmd
}

// Complete reads the names of the node and of its GPU.
func (o *Options) Complete(args []string) (err error) {
	o.nodes, o.which = cmdutil.NodeNames(args[:1]), args[1]
	o.cluster, err = o.Connect()
	return err
}

// Validate says that the name of the node is empty.
func (o *Options) Validate() error { return cmdutil.CheckNodeNames(o.nodes) }

// Run writes whether the GPU is cordoned.
func (o *Options) Run(ctx context.Context) error {
	_, err := Mark(ctx, o.cluster, o.Out, o.nodes[0], o.which, o.cordoned)
	return err
}
