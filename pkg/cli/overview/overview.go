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
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/cli/listing"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/printers"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Options are those of the overview of nodes.
type Options struct {
	*cmdutil.Factory
	Suggest func(word string) []string // commands that a word may mean; nil: none

	selector  string
	output    cmdutil.Output
	details   bool
	noHeaders bool
	watch     bool
	sortBy    string
	trouble   bool

	nodes   []string // empty: all
	cluster *cluster.Reader
	shown   *string // what was printed last; nil: nothing yet
}

// NewCommand returns the overview under a name of its own.
func NewCommand(f *cmdutil.Factory) *cobra.Command {
	o := &Options{Factory: f}
	cmd := &cobra.Command{
		Use:               "nodes [NODE...] [-l SELECTOR] [-d] [-o FORMAT]",
		Short:             "Show nodes, with what is allocated of each GPU",
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
	f := cmd.Flags()
	o.output.Add(cmd, "a table", cmdutil.Wide, cmdutil.Name, cmdutil.CustomColumns)
	f.StringVarP(&o.selector, "selector", "l", o.selector, "Show only nodes whose labels match, for example pool=gpu")
	f.BoolVarP(&o.details, "details", "d", o.details, "Show each node with its GPUs and the pods on them, and the pods that wait for a node")
	f.BoolVar(&o.noHeaders, "no-headers", o.noHeaders, "Print rows alone, without headers, legends and sums")
	f.BoolVarP(&o.watch, "watch", "w", o.watch, "Print it again whenever it changes")
	o.AddAllNamespaces(cmd)
	f.StringVar(&o.sortBy, "sort-by", "", "Sort by a field of the JSON form, as a JSONPath: "+strings.Join(sortFields(), " or "))
	f.BoolVar(&o.trouble, "trouble", false, "Show only nodes that have trouble, and which; nodes with the same trouble are one row")
}

// Complete reads the names of nodes.
func (o *Options) Complete(args []string) (err error) {
	o.nodes = cmdutil.NodeNames(args)
	o.cluster, err = o.Connect()
	return err
}

// Validate reports all that is wrong with the flags.
func (o *Options) Validate() error {
	errs := []error{listing.CheckOutput(&o.output), listing.CheckSort(o.sortBy)}
	if (o.output.Format == cmdutil.Name || o.output.Columns() != "") && o.details {
		errs = append(errs, fmt.Errorf("--details has no place in the output of -o %s", o.output.Format))
	}
	if o.trouble && o.details {
		errs = append(errs, errors.New("--details and --trouble exclude each other"))
	}
	if len(o.nodes) > 0 && o.selector != "" {
		errs = append(errs, errors.New("names of nodes and --selector exclude each other"))
	}
	errs = append(errs, cmdutil.CheckNodeNames(o.nodes))
	if _, err := labels.Parse(o.selector); err != nil {
		errs = append(errs, fmt.Errorf("--selector: %w", err))
	}
	return errors.Join(errs...)
}

// Run prints the overview, and again whenever it changes if it is to watch.
func (o *Options) Run(ctx context.Context) error {
	if err := o.show(ctx); err != nil || !o.watch {
		return err
	}
	return o.cluster.OnChange(ctx, nil, o.show)
}

// show looks at the cluster and prints what it found.
func (o *Options) show(ctx context.Context) error {
	report, err := o.Report(ctx, o.cluster, cluster.Selection{Names: o.nodes, Labels: o.selector})
	if err != nil {
		return err
	}
	if o.trouble {
		report = report.Trouble()
	}
	if err := listing.SortRows(report.Nodes, o.sortBy, sortFields()); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := o.printer()(&text, report); err != nil {
		return err
	}
	now := text.String()
	if o.shown != nil {
		if *o.shown == now {
			return nil // something has changed that is not shown
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
		case o.selector != "" && report.WithoutInventory == 0:
			fmt.Fprintf(o.ErrOut, "No node matches the selector %s\n", table.Clean(o.selector))
		default:
			fmt.Fprintf(o.ErrOut, "No nodes found that offer %s (%d without it)\n", report.Resource, report.WithoutInventory)
		}
	}
	if command := o.meant(report); command != "" {
		fmt.Fprintf(o.ErrOut, "There is no node %s: did you mean the command %s?\n", table.Clean(o.nodes[0]), command)
	}
	if incomplete := o.Complain(report.Problems); !o.watch { // which goes on
		return incomplete
	}
	return nil
}

// meant returns the command that the first argument may be, where it names no node.
func (o *Options) meant(r inspect.Report) string {
	if o.Suggest == nil || len(o.nodes) == 0 || slices.ContainsFunc(r.Nodes, func(n inspect.Node) bool { return n.Name == o.nodes[0] }) {
		return ""
	}
	if strings.ContainsAny(o.nodes[0], "-.0123456789") {
		return "" // as in names of nodes, and in no command
	}
	return strings.Join(o.Suggest(o.nodes[0]), " or ")
}

// sortFields are those by which people sort nodes.
func sortFields() []string { return []string{".name", ".requested.MiB", ".largestFree.MiB"} }

// custom prints the columns that the flags name.
func (o *Options) custom(w io.Writer, r inspect.Report) error {
	columns, err := listing.CustomColumns[inspect.Node](o.output.Columns())
	if err != nil {
		return err
	}
	return table.List(w, columns, r.Nodes, table.ListOptions{NoHeaders: o.noHeaders})
}

func (o *Options) printer() printers.Printer {
	table := table.ListOptions{Wide: o.output.Format == cmdutil.Wide, NoHeaders: o.noHeaders}
	switch {
	case o.output.ForPrograms():
		return func(w io.Writer, r inspect.Report) error { return o.output.Print(w, r) }
	case o.output.Format == cmdutil.Name:
		return printers.Names
	case o.output.Columns() != "":
		return o.custom
	case o.trouble:
		return printers.Trouble(table)
	case o.details:
		return printers.Details(table)
	default:
		return printers.Table(table)
	}
}
