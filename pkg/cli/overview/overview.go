package overview

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/cli/listing"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/printers"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Options are the options of the command nodes and of the root command.
type Options struct {
	listing.Flags
	Suggest func(word string) []string // returns commands similar to a word; nil disables suggestions

	details bool
	trouble bool

	nodes []string // empty: all
	shown *string  // the last output; nil before the first one
}

// NewCommand returns the command nodes.
func NewCommand(f *cmdutil.Factory) *cobra.Command {
	o := &Options{Flags: listing.Flags{Factory: f}}
	cmd := &cobra.Command{
		Use:               "nodes [NODE...] [-l SELECTOR] [-d] [-o FORMAT]",
		Short:             "Show nodes and the allocated memory of each GPU",
		Example:           "  kubectl inspect gpumem nodes -o wide\n  kubectl inspect gpumem nodes -o jsonpath='{.nodes[*].name}'",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: f.CompleteNodes,
		RunE:              func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) },
	}
	o.AddFlags(cmd)
	return cmd
}

// AddFlags adds the flags of the overview to a command.
func (o *Options) AddFlags(cmd *cobra.Command) {
	o.Add(cmd, "nodes", ".name", ".requested.MiB", ".largestFree.MiB")
	o.AddWatch(cmd)
	o.Whole = true
	f := cmd.Flags()
	f.Lookup("watch").Usage = "Print the overview again whenever it changes"
	f.BoolVarP(&o.details, "details", "d", o.details, "Show the GPUs and pods of each node, and the pods that wait for a node")
	f.BoolVar(&o.trouble, "trouble", false, "Show only nodes with trouble, and its cause; nodes with the same trouble share a row")
}

// Complete parses the node names and connects to the cluster.
func (o *Options) Complete(args []string) error {
	o.nodes = cmdutil.NodeNames(args)
	return o.Flags.Complete()
}

// Validate returns all errors in the flags.
func (o *Options) Validate() error {
	errs := []error{o.Flags.Validate()}
	if (o.Format == cmdutil.Name || o.Columns() != "") && o.details {
		errs = append(errs, fmt.Errorf("--details does not work with -o %s", o.Format))
	}
	if o.trouble && o.details {
		errs = append(errs, errors.New("--details and --trouble exclude each other"))
	}
	if len(o.nodes) > 0 && o.Selector != "" {
		errs = append(errs, errors.New("names of nodes and --selector exclude each other"))
	}
	return errors.Join(append(errs, cmdutil.CheckNodeNames(o.nodes))...)
}

// Run prints the overview and, with --watch, prints it again after each change.
func (o *Options) Run(ctx context.Context) error {
	if err := o.show(ctx); err != nil || !o.Watch {
		return err
	}
	return o.Cluster.OnChange(ctx, nil, o.show)
}

// show reads the cluster and prints the overview, unless it equals the last output.
func (o *Options) show(ctx context.Context) error {
	report, err := o.Report(ctx, o.Cluster, cluster.Selection{Names: o.nodes, Labels: o.Selector})
	if err != nil {
		return err
	}
	if o.trouble {
		report = report.Trouble()
	}
	if err := listing.Sort(&o.Flags, report.Nodes); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := o.print(&text, report); err != nil {
		return err
	}
	now := text.String()
	if o.shown != nil {
		if *o.shown == now {
			return nil // the change is not visible
		}
		fmt.Fprintln(o.Out)
	}
	o.shown = &now
	if _, err := io.WriteString(o.Out, now); err != nil {
		return err
	}
	if len(report.Nodes) == 0 && len(report.Problems) == 0 {
		switch {
		case o.trouble:
			fmt.Fprintln(o.ErrOut, "No node has trouble")
		case o.Selector != "" && report.WithoutInventory == 0:
			fmt.Fprintf(o.ErrOut, "No node matches the selector %s\n", table.Clean(o.Selector))
		default:
			fmt.Fprintf(o.ErrOut, "No nodes found that offer %s (%d without it)\n", report.Resource, report.WithoutInventory)
		}
	}
	if command := o.meant(report); command != "" {
		fmt.Fprintf(o.ErrOut, "There is no node %s: did you mean the command %s?\n", table.Clean(o.nodes[0]), command)
	}
	if incomplete := o.PrintProblems(report.Problems); !o.Watch { // a watch continues
		return incomplete
	}
	return nil
}

// meant returns the commands that the user may have meant by the first argument; empty if a node has this
// name.
func (o *Options) meant(r inspect.Report) string {
	if o.Suggest == nil || len(o.nodes) == 0 || slices.ContainsFunc(r.Nodes, func(n inspect.Node) bool { return n.Name == o.nodes[0] }) {
		return ""
	}
	if strings.ContainsAny(o.nodes[0], "-.0123456789") {
		return "" // no command has these characters
	}
	return strings.Join(o.Suggest(o.nodes[0]), " or ")
}

func (o *Options) print(w io.Writer, r inspect.Report) error {
	options := table.ListOptions{Wide: o.Format == cmdutil.Wide, NoHeaders: o.NoHeaders}
	switch {
	case o.Format == cmdutil.Name, o.Columns() != "":
		view := listing.View[inspect.Node]{Name: func(n inspect.Node) string { return "node/" + n.Name }}
		return listing.Print(w, &o.Flags, view, r, r.Nodes, !o.NoHeaders)
	case o.ForPrograms():
		return o.Output.Print(w, r)
	case o.trouble:
		options.Columns = o.Terminal
		return printers.Trouble(options)(w, r)
	case o.details:
		return printers.Details(options)(w, r)
	default:
		options.Columns = o.Terminal
		return printers.Table(options)(w, r)
	}
}
