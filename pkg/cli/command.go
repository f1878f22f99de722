package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/cli/cordon"
	"github.com/gpumem/gpumem/pkg/cli/defrag"
	"github.com/gpumem/gpumem/pkg/cli/doctor"
	"github.com/gpumem/gpumem/pkg/cli/drain"
	"github.com/gpumem/gpumem/pkg/cli/explain"
	"github.com/gpumem/gpumem/pkg/cli/fit"
	"github.com/gpumem/gpumem/pkg/cli/listing"
	"github.com/gpumem/gpumem/pkg/cli/lists"
	"github.com/gpumem/gpumem/pkg/cli/overview"
)

const long = `Show the allocated GPU memory of nodes.

Each line is a node. It shows the memory that pods are allocated on each GPU and
the memory that the GPU offers (ALLOCATED/TOTAL). The scheduler decides on the
same numbers: a pod counts from its binding until its containers have ended,
also while it is being deleted.

If a part of the cluster cannot be read, the command prints the rest and lists
the missing parts on stderr.

%s

For completion of kubectl's command line, put an executable file named
kubectl_complete-inspect-gpumem on the PATH, with these lines:

  #!/bin/sh
  exec kubectl inspect gpumem __complete "$@"`

const example = `  # All nodes with GPU memory
  kubectl inspect gpumem

  # Two nodes, with the pods on each of their GPUs
  kubectl inspect gpumem -d gpu-a gpu-b

  # The pods of one namespace, and why some of them wait
  kubectl inspect gpumem -d -n ml

  # Nodes by label, with model, driver and the largest request that fits
  kubectl inspect gpumem -l pool=gpu -o wide

  # Only nodes with trouble
  kubectl inspect gpumem --trouble

  # The largest request that fits on each node, in MiB
  kubectl inspect gpumem -o custom-columns=NODE:.name,FREE:.largestFree.MiB

  # In a cluster that was set up for another resource domain
  kubectl inspect gpumem --resource-domain=aliyun.com`

// NewCommand returns the root command with its subcommands. The root command prints the overview of
// nodes.
func NewCommand(f *cmdutil.Factory) *cobra.Command {
	o := &overview.Options{Flags: listing.Flags{Factory: f}}
	cmd := &cobra.Command{
		Use:                   "kubectl-inspect-gpumem [NODE...] [-l SELECTOR] [-d] [-o FORMAT]",
		Annotations:           map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl inspect gpumem"},
		Short:                 "Show GPU memory by node, GPU and pod",
		Long:                  fmt.Sprintf(long, cmdutil.HelpOnExitCodes()),
		Example:               example,
		Version:               f.Version,
		DisableFlagsInUseLine: true,
		SilenceUsage:          true,
		SilenceErrors:         true, // main prints errors
		Args:                  cobra.ArbitraryArgs,
		ValidArgsFunction:     f.CompleteNodes,
		RunE:                  func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) },
	}
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.SuggestionsMinimumDistance = 2
	o.Suggest = cmd.SuggestionsFor
	cmd.AddCommand(
		overview.NewCommand(f), lists.NewGPUsCommand(f), lists.NewPodsCommand(f), lists.NewTopCommand(f), lists.NewNamespacesCommand(f), explain.NewCommand(f), fit.NewCommand(f),
		cordon.NewCommand(f), cordon.NewUncordonCommand(f), drain.NewCommand(f), defrag.NewCommand(f), doctor.NewCommand(f),
		newVersionCommand(f), newOptionsCommand(f),
	)
	for _, c := range cmd.Commands() {
		c.Args = withUsage(c.Args)
	}
	cmd.SetUsageTemplate(usage)
	cmd.SetIn(f.In)
	cmd.SetOut(f.Out)
	cmd.SetErr(f.ErrOut)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\nSee '%s --help' for usage", err, cmd.CommandPath())
	})
	f.AddFlags(cmd.PersistentFlags())
	o.AddFlags(cmd)
	// The call fails only if the flag does not exist, which a test would detect.
	_ = cmd.RegisterFlagCompletionFunc("namespace", f.CompleteNamespaces)
	return cmd
}

// usage is cobra's usage template without the flags that all commands share. Most of them are kubectl's,
// and kubectl's help omits them too.
const usage = `Usage:
  {{.UseLine}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .LocalNonPersistentFlags.HasAvailableFlags}}

Flags:
{{.LocalNonPersistentFlags.FlagUsagesWrapped 80 | trimTrailingWhitespaces}}{{end}}

Use "{{.Root.CommandPath}} options" for the flags that every command has.
`

func newOptionsCommand(f *cmdutil.Factory) *cobra.Command {
	return &cobra.Command{
		Use: "options", Short: "Print the flags that every command has", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(f.Out, cmd.Root().PersistentFlags().FlagUsagesWrapped(80))
			return err
		},
	}
}

func newVersionCommand(f *cmdutil.Factory) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this command", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(f.Out, f.Version)
			return err
		},
	}
}

// withUsage adds the usage line to an error about the number of arguments.
func withUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		return nil
	}
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return fmt.Errorf("%w\nUsage: %s", err, cmd.UseLine())
		}
		return nil
	}
}
