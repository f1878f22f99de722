package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/inspect"
	"github.com/gpumem/gpumem/pkg/printers"
)

// newNodesCommand returns the overview under a name of its own.
func newNodesCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "nodes [NODE...] [-l SELECTOR] [-d] [-o FORMAT]",
		Short:             "Show nodes, with what is allocated of each GPU",
		Example:           "  kubectl inspect gpumem nodes -o wide",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: o.completeNodes,
		RunE:              o.overview,
	}
	o.addOverviewFlags(cmd)
	return cmd
}

func newGPUsCommand(o *options) *cobra.Command {
	l := &listing{options: o}
	cmd := &cobra.Command{
		Use:   "gpus [NODE...] [-l SELECTOR] [-o FORMAT] [-w]",
		Short: "Show GPUs, with what is allocated and used of each",
		Example: `  # The GPUs of which most is allocated last
  kubectl inspect gpumem gpus --sort-by=.requested.MiB

  # Those of one node, with UUIDs, as they change
  kubectl inspect gpumem gpus gpu-a -o wide -w`,
		ValidArgsFunction: o.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.prepare(args, l.validate); err != nil {
				return err
			}
			return show(cmd.Context(), l, view[printers.GPURow]{
				kind: "GPUList",
				read: func(ctx context.Context) (inspect.Report, cluster.Usage, error) {
					report, err := o.report(ctx, cluster.Selection{Names: o.nodes, Labels: o.selector})
					return report, o.cluster.Usage(ctx), err
				},
				rows:    func(r inspect.Report, u cluster.Usage) []printers.GPURow { return printers.GPURows(r, u.GPUs) },
				columns: printers.GPUColumns,
				name:    func(g printers.GPURow) string { return fmt.Sprintf("gpu/%s/%d", g.Node, g.Index) },
				id:      func(g printers.GPURow) string { return g.Node + "/" + string(g.UUID) },
				notes:   printers.GPUNotes,
			})
		},
	}
	l.addFlags(cmd, "the GPUs of nodes", ".node", ".requested.MiB")
	l.addWatchFlags(cmd)
	return cmd
}

func newPodsCommand(o *options) *cobra.Command {
	var waiting bool
	cmd := newPodListCommand(o, podList{
		use: "pods", short: "Show pods, with what they were granted, what they use and where they are",
		columns: func(r inspect.Report) []printers.Column[printers.PodRow] {
			if waiting {
				return printers.WaitingColumns(r)
			}
			return printers.PodColumns(r)
		},
		example: `  # The pods of a team, and where they are
  kubectl inspect gpumem pods -n ml -l team=vision

  # Those that wait, and why
  kubectl inspect gpumem pods --waiting`,
		fields: []string{".node", ".granted.MiB", ".waitsFor.MiB"},
		keep:   func(p printers.PodRow) bool { return !waiting || p.Waits() },
		ends:   func() bool { return !waiting }, // one that no longer waits has a node, perhaps
	})
	cmd.Flags().BoolVar(&waiting, "waiting", false, "Show only pods that are on no node")
	return cmd
}

func newTopCommand(o *options) *cobra.Command {
	return newPodListCommand(o, podList{
		use: "top", short: "Show what pods use of what they were granted, and what would do",
		columns: func(inspect.Report) []printers.Column[printers.PodRow] { return printers.TopColumns() },
		example: `  # Who uses the most
  kubectl inspect gpumem top --sort-by=.usage.usedMiB`,
		fields: []string{".node", ".granted.MiB", ".usage.usedMiB"},
		keep:   func(p printers.PodRow) bool { return !p.Waits() },
	})
}

// podKind is what a list of pods is in JSON.
const podKind = "PodList"

// podList is a command that lists pods.
type podList struct {
	use, short, example string
	fields              []string // to sort by
	columns             func(inspect.Report) []printers.Column[printers.PodRow]
	keep                func(printers.PodRow) bool
	ends                func() bool // who watches is told of pods that are there no more
}

func newPodListCommand(o *options, p podList) *cobra.Command {
	l := &listing{options: o}
	cmd := &cobra.Command{
		Use:               p.use + " [POD...] [-n NAMESPACE] [-l SELECTOR] [-o FORMAT] [-w]",
		Short:             p.short,
		Example:           p.example,
		ValidArgsFunction: o.completePods,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.prepare(nil, l.validate); err != nil {
				return err
			}
			named := podNames(args)
			matched := make(map[string]bool) // UIDs
			match, err := labels.Parse(l.selector)
			if err != nil {
				return err
			}
			end := printers.PodRow.End
			if p.ends == nil || !p.ends() {
				end = nil
			}
			return show(cmd.Context(), l, view[printers.PodRow]{
				kind: podKind,
				read: func(ctx context.Context) (inspect.Report, cluster.Usage, error) {
					missing := maps.Clone(named)
					report, err := o.report(ctx, cluster.Selection{EachPod: func(pod *v1.Pod) {
						byName := named[pod.Name] || named[pod.Namespace+"/"+pod.Name]
						if match.Matches(labels.Set(pod.Labels)) && (len(named) == 0 || byName) {
							matched[string(pod.UID)] = true
						}
						delete(missing, pod.Name)
						delete(missing, pod.Namespace+"/"+pod.Name)
					}})
					for _, name := range slices.Sorted(maps.Keys(missing)) {
						report.Problems = append(report.Problems, inspect.Problem{Object: "pod " + name, Message: "there is none that holds GPU memory or asks for it"})
					}
					return report, o.cluster.Usage(ctx), err
				},
				rows: func(r inspect.Report, u cluster.Usage) []printers.PodRow {
					return slices.DeleteFunc(printers.PodRows(r, u.Pods), func(row printers.PodRow) bool { return !matched[row.UID] || !p.keep(row) })
				},
				columns: p.columns,
				name:    func(row printers.PodRow) string { return "pod/" + row.Name },
				notes:   printers.PodNotes,
				id:      func(row printers.PodRow) string { return row.UID },
				end:     end,
			})
		},
	}
	l.addFlags(cmd, "pods", p.fields...)
	l.addWatchFlags(cmd)
	return cmd
}

// podNames reads arguments: NAME, NAMESPACE/NAME or pod/NAME, as -o name prints.
func podNames(args []string) map[string]bool {
	names := make(map[string]bool)
	for _, arg := range args {
		names[strings.TrimPrefix(arg, "pod/")] = true
	}
	return names
}
