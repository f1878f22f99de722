package fit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/cli/listing"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Options are the options of the command fit.
type Options struct {
	listing.Flags
	pod hypotheticalPod

	nodes []string // empty: all
}

// hypotheticalPod describes the pod that the command counts, with the values of the flags.
type hypotheticalPod struct {
	memory        string
	shares        int
	count, cores  int
	model, policy string
}

// capacity is the number of pods that fit one node.
type capacity struct {
	Node   string `json:"node"`
	Times  int    `json:"times"`
	Reason string `json:"reason,omitempty"` // why no pod fits; empty if at least one pod fits
}

// NewCommand returns the command fit.
func NewCommand(f *cmdutil.Factory) *cobra.Command {
	o := &Options{Flags: listing.Flags{Factory: f}, pod: hypotheticalPod{count: 1}}
	cmd := &cobra.Command{
		Use:   "fit --mem SIZE|--share N [--count N] [NODE...]",
		Short: "Count the pods of a given size that fit each node",
		Long: `Count the pods of a given size that fit each node, and all nodes together.
The exit code is 1 if the pod fits on no node, and 2 if the answer is unknown:
users who may read only one namespace see the free amount of its quotas instead.

Only GPU memory and cores count. kube-scheduler also checks the CPU, the memory
and the other constraints of a node.`,
		Example: `  # How many pods of 10 GiB would fit
  kubectl inspect gpumem fit --mem 10

  # How many pods with 40 GiB on each of 2 A100s
  kubectl inspect gpumem fit --mem 80 --count 2 --model 'A100*'

  # How many pods of three tenths of a GPU, on nodes that offer shares
  kubectl inspect gpumem fit --share 3`,
		ValidArgsFunction: f.CompleteNodes,
		RunE:              func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) },
	}
	o.Add(cmd, "nodes", ".node", ".times")
	f.SetNamespaceHelp(cmd, cmdutil.NamespaceOfOne)
	flags, w := cmd.Flags(), &o.pod
	flags.StringVar(&w.memory, "mem", "", "GPU memory of the pod, summed over its GPUs: GiB, or with a unit (512Mi)")
	flags.SetNormalizeFunc(normalizeFlag)
	flags.IntVar(&w.count, "count", w.count, "Number of GPUs to split the amount over")
	flags.IntVar(&w.cores, "cores", 0, "GPU cores that the pod requests as well, in per cent")
	flags.StringVar(&w.model, "model", "", "Globs of GPU models, as in the annotation gpu-model")
	flags.StringVar(&w.policy, "policy", "", "Policy, as in the annotation: "+placement.JoinPolicies(placement.Policies()))
	flags.IntVar(&w.shares, "share", 0, "Shares of GPUs instead of memory, summed over its GPUs: 10 are a whole GPU")
	return cmd
}

// Complete parses the node names and connects to the cluster.
func (o *Options) Complete(args []string) error {
	o.nodes = cmdutil.NodeNames(args)
	return o.Flags.Complete()
}

// Validate returns an error if a flag is invalid.
func (o *Options) Validate() error {
	if (o.pod.memory == "") == (o.pod.shares == 0) {
		return errors.New("set either --mem SIZE or --share N")
	}
	if o.pod.count < 1 {
		return fmt.Errorf("--count is %d, want a number of GPUs from 1", o.pod.count)
	}
	_, err := o.pod.request(o.Cluster.Names, 1)
	return errors.Join(o.Flags.Validate(), err)
}

// Run prints the number of pods that fit each node, and their sum.
func (o *Options) Run(ctx context.Context) error {
	unseen := o.NewAccessLimits()
	nodes, facts, err := o.Cluster.Load(ctx, cluster.Selection{Names: o.nodes, Labels: o.Selector, Limits: unseen})
	if err != nil {
		return err
	}
	if unseen.IsLimited() {
		return o.printQuotaAnswer(ctx, unseen)
	}
	if err := cluster.RequirePods("count the pods that fit", facts); err != nil {
		return err
	}
	o.ReadPolicy(ctx, o.Cluster, &facts)
	rows, total, err := o.capacities(nodes, facts)
	if err != nil {
		return err
	}
	if err := listing.Sort(&o.Flags, rows); err != nil {
		return err
	}
	var exceeded error
	report := inspect.Report{Problems: facts.Problems}
	shown := rows
	if o.Format == cmdutil.Name { // this format has no count, so a printed node must fit at least one pod
		shown = slices.DeleteFunc(slices.Clone(rows), func(r capacity) bool { return r.Times == 0 })
	}
	if err := listing.Print(o.Out, &o.Flags, capacityView(), report, shown, !o.NoHeaders); err != nil {
		return err
	}
	if o.Format == "" && !o.ForPrograms() && !o.NoHeaders {
		exceeded = o.printTotal(ctx, total)
	}
	if err := o.PrintProblems(report.Problems); err != nil {
		return err
	}
	switch {
	case len(rows) == 0:
		return fmt.Errorf("the pod fits on no node: none of these nodes offers %s", o.pod.resource(o.Cluster.Names))
	case total == 0:
		return errors.New("the pod fits on no node")
	}
	return exceeded
}

// printTotal prints the number of pods that fit on all nodes together and, if --namespace is set, the quotas of
// that namespace. The error names a quota that refuses the pod.
func (o *Options) printTotal(ctx context.Context, total int) (exceeded error) {
	fmt.Fprintln(o.Out)
	permitted := total
	if namespace := o.Namespace(); namespace != "" {
		permitted, exceeded = o.printQuotas(ctx, namespace, total)
	}
	if permitted < total {
		fmt.Fprintf(o.Out, "Fits %s in all. The nodes have space for %d.\n", cmdutil.Times(permitted), total)
	} else {
		fmt.Fprintf(o.Out, "Fits %s in all.\n", cmdutil.Times(total))
	}
	return exceeded
}

// capacities returns a row for each node with GPUs, and the sum over all rows. For each size of units, it
// prints a note with the request in units.
func (o *Options) capacities(nodes []placement.Node, facts inspect.Facts) (rows []capacity, total int, err error) {
	var spellings []string
	for _, n := range nodes {
		if len(n.Devices) == 0 {
			continue
		}
		req, err := o.pod.request(o.Cluster.Names, n.UnitMiB)
		if err != nil {
			return nil, 0, err
		}
		if s := o.pod.spelling(o.Cluster.Names.GPUMem(), req, n.UnitMiB); s != "" && !slices.Contains(spellings, s) {
			spellings = append(spellings, s)
			fmt.Fprintln(o.ErrOut, s)
		}
		row := capacity{Node: n.Name}
		if refusal := facts.Nodes[n.Name].Refusal(req); refusal != nil {
			row.Reason = reasons.Refusal(refusal)
		} else {
			row.Times, row.Reason = inspect.CountFits(req, n, facts.Policy)
		}
		total += row.Times
		rows = append(rows, row)
	}
	return rows, total, nil
}

func capacityView() listing.View[capacity] {
	return listing.View[capacity]{
		Kind: "RoomList",
		Name: func(r capacity) string { return "node/" + r.Node },
		Columns: func(inspect.Report) []table.Column[capacity] {
			return []table.Column[capacity]{
				{Header: "NODE", Cell: func(r capacity) string { return r.Node }},
				{Header: "TIMES", Cell: func(r capacity) string { return strconv.Itoa(r.Times) }},
				{Header: "REASON", Cut: true, Cell: func(r capacity) string { return r.Reason }},
			}
		},
	}
}
