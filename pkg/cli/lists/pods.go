package lists

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/cli/listing"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/printers"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Pods are the options of commands that list pods.
type Pods struct {
	listing.Flags

	columns   func(inspect.Report) []table.Column[printers.PodRow]
	selects   func(printers.PodRow) bool
	waiting   func() bool // only waiting pods are shown: similar pods share a row, and missing usage needs no note
	printsEnd func() bool // a watch prints a last row for each pod that is gone

	named   map[string]bool       // NAME or NAMESPACE/NAME; empty: all
	matched map[string]bool       // UIDs of the selected pods
	limits  *cluster.AccessLimits // from the last read
}

// NewPodsCommand returns the command pods.
func NewPodsCommand(f *cmdutil.Factory) *cobra.Command {
	var waiting bool
	cmd := newCommand(f, &cobra.Command{
		Use: "pods", Short: "Show pods with their node, GPUs, allocated and used memory",
		Example: `  # The pods of a team, and where they are
  kubectl inspect gpumem pods -n ml -l team=vision

  # Waiting pods, with the reasons
  kubectl inspect gpumem pods --waiting`,
	}, &Pods{
		columns:   func(r inspect.Report) []table.Column[printers.PodRow] { return printers.PodColumns(r, waiting) },
		selects:   func(p printers.PodRow) bool { return !waiting || p.IsWaiting() },
		waiting:   func() bool { return waiting },
		printsEnd: func() bool { return !waiting }, // a pod that leaves this list may have got a node
	}, ".node", ".granted.MiB", ".waitsFor.MiB")
	cmd.Flags().BoolVar(&waiting, "waiting", false, "Show only pods that wait for a node; pods that wait alike share a row, except with -o wide")
	return cmd
}

// NewTopCommand returns the command top.
func NewTopCommand(f *cmdutil.Factory) *cobra.Command {
	return newCommand(f, &cobra.Command{
		Use: "top", Short: "Show the used and allocated memory of pods, and better requests",
		Example: `  # Who uses the most
  kubectl inspect gpumem top --sort-by=.usage.usedMiB`,
	}, &Pods{
		columns:   func(inspect.Report) []table.Column[printers.PodRow] { return printers.TopColumns() },
		selects:   func(p printers.PodRow) bool { return !p.IsWaiting() },
		waiting:   func() bool { return false },
		printsEnd: func() bool { return false },
	}, ".node", ".granted.MiB", ".usage.usedMiB", ".usage.smPercent")
}

// newCommand completes a command that lists pods. Parameter fields lists the fields that the help of
// --sort-by names.
func newCommand(f *cmdutil.Factory, cmd *cobra.Command, o *Pods, fields ...string) *cobra.Command {
	o.Factory = f
	cmd.Use += " [POD...] [-n NAMESPACE] [-o FORMAT] [-w]"
	cmd.ValidArgsFunction = f.CompletePods
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) }
	o.Add(cmd, "pods", fields...)
	o.AddWatch(cmd)
	return cmd
}

// Complete parses the pod names: NAME, NAMESPACE/NAME or pod/NAME, which -o name prints.
func (o *Pods) Complete(args []string) error {
	o.named = make(map[string]bool)
	for _, arg := range args {
		o.named[strings.TrimPrefix(arg, "pod/")] = true
	}
	return o.Flags.Complete()
}

// Run prints the list.
func (o *Pods) Run(ctx context.Context) error {
	read, err := o.reader()
	if err != nil {
		return err
	}
	endRow := printers.PodRow.EndRow
	if !o.printsEnd() {
		endRow = nil
	}
	return listing.Show(ctx, &o.Flags, listing.View[printers.PodRow]{
		Kind: listing.PodKind,
		Read: read,
		Rows: func(r inspect.Report, u cluster.Usage) []printers.PodRow {
			rows := o.rows(r, u)
			if o.Format == "" && !o.Watch && o.waiting() {
				return printers.GroupWaiting(rows)
			}
			return rows
		},
		Columns: o.columns,
		Name:    func(row printers.PodRow) string { return "pod/" + row.Name },
		ID:      func(row printers.PodRow) string { return row.UID },
		Limits:  func() *cluster.AccessLimits { return o.limits },
		EndRow:  endRow,
	})
}

// reader returns a function that reads the cluster and records the selected pods.
func (o *Pods) reader() (func(context.Context) (inspect.Report, cluster.Usage, error), error) {
	o.matched = make(map[string]bool)
	match, err := labels.Parse(o.Selector)
	return func(ctx context.Context) (inspect.Report, cluster.Usage, error) { return o.read(ctx, match) }, err
}

// rows returns a row for each selected pod.
func (o *Pods) rows(r inspect.Report, u cluster.Usage) []printers.PodRow {
	return slices.DeleteFunc(printers.PodRows(r, u.Pods), func(row printers.PodRow) bool { return !o.matched[row.UID] || !o.selects(row) })
}

// read reads the cluster and records the selected pods in o.matched.
func (o *Pods) read(ctx context.Context, match labels.Selector) (inspect.Report, cluster.Usage, error) {
	missing, unseen := maps.Clone(o.named), o.NewAccessLimits()
	o.limits = unseen
	recorded := make(map[printers.UsageKey]printers.Usage)
	report, err := o.Report(ctx, o.Cluster, cluster.Selection{Limits: unseen, EachPod: func(pod *v1.Pod) {
		if only := o.Namespace(); only != "" && pod.Namespace != only {
			return // a pod of another namespace, perhaps with the name of an argument
		}
		byName := o.named[pod.Name] || o.named[pod.Namespace+"/"+pod.Name]
		if match.Matches(labels.Set(pod.Labels)) && (len(o.named) == 0 || byName) {
			o.matched[string(pod.UID)] = true
			if key, use, ok := o.Cluster.RecordedUsage(pod); ok {
				recorded[key] = use
			}
		}
		delete(missing, pod.Name)
		delete(missing, pod.Namespace+"/"+pod.Name)
	}})
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		report.Problems = append(report.Problems, inspect.Problem{Object: "pod " + name, Message: "no pod of this name holds or requests GPU memory"})
	}
	usage := o.Cluster.Usage(ctx)
	if usage.Denied { // few users may read the metrics of device plugins
		usage.Problems = nil
		if len(recorded) == 0 && !o.waiting() {
			o.NoteMissing("usage")
		}
	}
	maps.Copy(recorded, usage.Pods)
	usage.Pods = recorded
	return report, usage, err
}
