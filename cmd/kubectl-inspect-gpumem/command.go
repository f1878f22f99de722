package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const long = `Show who holds what GPU memory, by node and GPU.

Each line is a node, with what pods hold of each of its GPUs and what the GPU
offers (ALLOCATED/TOTAL). The numbers are those that the scheduler decides on: a
pod counts from the moment it is bound to a node until its containers have
ended, while it is being deleted too.

The exit code is 1 when something could not be read. What could be read is
printed all the same, and stderr says what is missing.

For completion of kubectl's own command line, put an executable file named
kubectl_complete-inspect-gpumem on the PATH, with the lines

  #!/bin/sh
  exec kubectl inspect gpumem __complete "$@"`

const example = `  # All nodes with GPU memory
  kubectl inspect gpumem

  # Two nodes, with the pods on each of their GPUs
  kubectl inspect gpumem -d gpu-a gpu-b

  # The pods of one namespace, and why some of them wait
  kubectl inspect gpumem -d -n ml

  # Nodes by label, with model, driver and the largest request that one GPU can take
  kubectl inspect gpumem -l pool=gpu -o wide

  # What is not allocated of each GPU, in MiB
  kubectl inspect gpumem -o json |
    jq -r '.nodes[] | .name as $n | .gpus[] | "\($n) \(.index) \(.capacity.MiB - .requested.MiB)"'

  # In a cluster that was set up for another resource domain
  kubectl inspect gpumem --resource-domain=aliyun.com`

// newCommand returns the tree of commands. The root is the overview of nodes;
// what else there is to look at becomes a subcommand beside it.
func newCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "kubectl-inspect-gpumem [NODE...] [-l SELECTOR] [-d] [-o FORMAT]",
		Annotations:           map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl inspect gpumem"},
		Short:                 "Show who holds what GPU memory",
		Long:                  long,
		Example:               example,
		Version:               version,
		DisableFlagsInUseLine: true,
		SilenceUsage:          true,
		SilenceErrors:         true, // run prints them
		Args:                  cobra.ArbitraryArgs,
		ValidArgsFunction:     o.completeNodes,
		RunE:                  o.overview,
	}
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(
		newNodesCommand(o), newGPUsCommand(o), newPodsCommand(o), newTopCommand(o), newExplainCommand(o), newFitCommand(o),
		newCordonCommand(o), newUncordonCommand(o), newDrainCommand(o), newDefragCommand(o), newDoctorCommand(o), newSnapshotCommand(o),
	)
	for _, c := range cmd.Commands() {
		c.Args = withUsage(c.Args)
	}
	cmd.SetIn(o.In)
	cmd.SetOut(o.Out)
	cmd.SetErr(o.ErrOut)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\nSee '%s --help' for usage", err, cmd.CommandPath())
	})
	o.addSharedFlags(cmd.PersistentFlags())
	o.addOverviewFlags(cmd)
	// It fails for a flag that does not exist, which a test would show.
	_ = cmd.RegisterFlagCompletionFunc("namespace", o.completeNamespaces)
	return cmd
}

// withUsage adds to what is wrong with the number of arguments what they are.
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

// overview is what the root does, and nodes.
func (o *options) overview(cmd *cobra.Command, args []string) error {
	if err := o.prepare(args, o.Validate); err != nil {
		return err
	}
	if !cmd.HasParent() {
		o.suggest = cmd.SuggestionsFor
	}
	if err := o.Run(cmd.Context()); err != nil || !o.watch {
		return err
	}
	return o.cluster.OnChange(cmd.Context(), o.Run)
}

// prepare derives what the flags stand for, and says what is wrong with them.
func (o *options) prepare(nodes []string, validate func() error) error {
	if err := o.Complete(nodes); err != nil {
		return err
	}
	return validate()
}

// completionTime is how long a shell waits for names before it gives up.
const completionTime = 3 * time.Second

func (o *options) completeNodes(cmd *cobra.Command, given []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return o.completeNames(cmd, given, prefix, func(ctx context.Context) (names []string, err error) {
		list, err := o.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		for _, n := range list.Items {
			if _, offers := n.Annotations[o.names.Inventory()]; offers {
				names = append(names, n.Name)
			}
		}
		return names, nil
	})
}

// completePods completes the names of pods with GPU memory.
func (o *options) completePods(cmd *cobra.Command, given []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return o.completeNames(cmd, given, prefix, func(ctx context.Context) (names []string, err error) {
		list, err := o.client.CoreV1().Pods(o.namespace()).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		for _, pod := range list.Items {
			if o.cluster.PerhapsAsks(&pod) {
				names = append(names, pod.Name)
			}
		}
		return names, nil
	})
}

func (o *options) completeNamespaces(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return o.completeNames(cmd, nil, prefix, func(ctx context.Context) (names []string, err error) {
		list, err := o.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		for _, n := range list.Items {
			names = append(names, n.Name)
		}
		return names, nil
	})
}

func (o *options) completeNames(cmd *cobra.Command, given []string, prefix string, list func(context.Context) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	// cobra completes with no context when the command was not executed with one.
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	if err := o.Complete(given); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := list(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	seen := make(map[string]bool)
	for _, name := range o.nodes {
		seen[name] = true
	}
	var out []string
	for _, name := range names {
		if !seen[name] && strings.HasPrefix(name, prefix) {
			out = append(out, name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
