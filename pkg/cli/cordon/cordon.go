package cordon

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
)

// Options are the options of the commands cordon and uncordon.
type Options struct {
	*cmdutil.Factory
	cordoned bool   // the desired state
	reason   string // of the cordon; lists show it to other users
	dryRun   bool

	cluster *cluster.Reader
	node    string
	which   []string // GPUs, each by its index, its UUID or a prefix of the UUID
}

// NewCommand returns the command cordon.
func NewCommand(f *cmdutil.Factory) *cobra.Command {
	return newCommand(f, "cordon", "Keep new pods off GPUs", `Keep new pods off GPUs. The pods on them keep running.

The command records each GPU, your user name and the reason in annotations of
the node; gpus, explain, doctor and the page show them. The capacity of the GPU
does not change, and containers on it can restart.`, true)
}

// NewUncordonCommand returns the command uncordon.
func NewUncordonCommand(f *cmdutil.Factory) *cobra.Command {
	return newCommand(f, "uncordon", "Let pods onto a GPU again", "Let pods onto a GPU again.", false)
}

func newCommand(f *cmdutil.Factory, use, short, long string, cordoned bool) *cobra.Command {
	o := &Options{Factory: f, cordoned: cordoned}
	cmd := &cobra.Command{
		Use:               use + " " + cmdutil.GPUArgs,
		Short:             short,
		Long:              long,
		Example:           "  kubectl inspect gpumem " + use + " gpu-a 3\n  kubectl inspect gpumem " + use + " gpu-a/2 gpu-a/3",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: f.CompleteNodeAndGPU,
		RunE:              func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) },
	}
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", o.dryRun, "Print the planned changes, and make none")
	if cordoned {
		cmd.Example += "\n  kubectl inspect gpumem " + use + " gpu-a 3 --reason='its fan is loud'"
		AddReason(cmd, &o.reason)
	}
	f.SetNamespaceHelp(cmd, cmdutil.NamespaceOfAll)
	return cmd
}

// AddReason adds the flag --reason to a command.
func AddReason(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", *reason, "Reason for the cordon, which lists show to other users")
}

// CheckReason returns an error if a reason is too long.
func CheckReason(reason string) error {
	if len(reason) > mostReason {
		return fmt.Errorf("--reason has %d bytes, at most %d are allowed", len(reason), mostReason)
	}
	return nil
}

// Complete parses the arguments and connects to the cluster.
func (o *Options) Complete(args []string) (err error) {
	if o.node, o.which, err = cmdutil.ParseGPUs(args); err != nil {
		return err
	}
	o.cluster, err = o.Connect()
	return err
}

// mostReason is the maximum length of a reason in bytes. It is low because tables show the reason.
const mostReason = 256

// Validate returns an error if the node name is empty or the reason is too long.
func (o *Options) Validate() error {
	if err := CheckReason(o.reason); err != nil {
		return err
	}
	return cmdutil.CheckNodeNames([]string{o.node})
}

// Run cordons or uncordons each GPU.
func (o *Options) Run(ctx context.Context) error {
	var errs []error
	for _, which := range o.which {
		if o.dryRun {
			device, err := GetGPU(ctx, o.cluster, o.node, which)
			if err == nil {
				PrintPlan(o.Out, o.node, device, o.cordoned)
			}
			errs = append(errs, err)
			continue
		}
		_, err := SetCordon(ctx, o.cluster, o.Out, o.node, which, o.cordoned, o.reason, "")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
