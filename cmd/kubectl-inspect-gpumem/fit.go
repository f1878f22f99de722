package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/decide"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/inspect"
	"github.com/gpumem/gpumem/pkg/placement"
	"github.com/gpumem/gpumem/pkg/printers"
)

// wish is a pod that one thinks of.
type wish struct {
	memory        string
	count, cores  int
	model, policy string
}

// room is how often a pod fits one node.
type room struct {
	Node   string `json:"node"`
	Times  int    `json:"times"`
	Reason string `json:"reason,omitempty"` // why not once
}

func newFitCommand(o *options) *cobra.Command {
	l := &listing{options: o}
	w := wish{count: 1}
	cmd := &cobra.Command{
		Use:   "fit --mem AMOUNT [--count N] [NODE...]",
		Short: "Say whether a pod would fit, and how many of the kind",
		Long: `Say whether a pod would fit, and how many of the kind, on each node and in all.
The exit code is 1 when it fits nowhere.

It counts GPU memory and cores alone: whether a node has CPU and memory for so
many pods, and takes them, is kube-scheduler's to say.`,
		Example: `  # How many pods of 10 GiB would fit
  kubectl inspect gpumem fit --mem 10

  # Of 2 GPUs with 40 GiB each, on A100s
  kubectl inspect gpumem fit --mem 80 --count 2 --model 'A100*'`,
		ValidArgsFunction: o.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.prepare(args, func() error {
				_, err := w.request(o, 1)
				return errors.Join(l.validate(), err)
			})
			if err != nil {
				return err
			}
			return o.fit(cmd.Context(), l, w)
		},
	}
	l.addFlags(cmd, "nodes", ".node", ".times")
	o.sayNamespace(cmd, namespaceOfAll)
	f := cmd.Flags()
	f.StringVar(&w.memory, "mem", "", "GPU memory of the pod, of all its GPUs together: GiB, or with a unit (512Mi)")
	f.SetNormalizeFunc(asAnnotated)
	f.IntVar(&w.count, "count", w.count, "How many GPUs it is split over")
	f.IntVar(&w.cores, "cores", 0, "Per cent of a GPU's cores that it asks for beside")
	f.StringVar(&w.model, "model", "", "Globs of GPU models, as in the annotation gpu-model")
	f.StringVar(&w.policy, "policy", "", "Policy, as in the annotation: binpack, spread or exclusive")
	_ = cmd.MarkFlagRequired("mem") // it exists
	return cmd
}

// asAnnotated lets the flags have the names of the resources and annotations that say the
// same, too.
func asAnnotated(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "gpu-mem", "gpu-count", "gpu-model":
		name = strings.TrimPrefix(name, "gpu-")
	case "gpu-core":
		name = "cores"
	}
	return pflag.NormalizedName(name)
}

// mib reads the amount: a bare number is GiB.
func (w wish) mib() (int64, error) {
	q, err := resource.ParseQuantity(w.memory)
	if _, number := strconv.ParseFloat(w.memory, 64); number == nil {
		q, err = resource.ParseQuantity(w.memory + "Gi")
	}
	if err != nil || q.Sign() <= 0 {
		return 0, fmt.Errorf("--mem is %q, want GiB (10) or an amount with a unit (512Mi)", w.memory)
	}
	const mib = 1 << 20
	return (q.Value()-1)/mib + 1, nil
}

// request is what the pod asks for where a unit has so many MiB: what a pod with
// these limits and annotations does.
func (w wish) request(o *options, unitMiB int64) (placement.Request, error) {
	mib, err := w.mib()
	if err != nil {
		return placement.Request{}, err
	}
	count := int64(max(1, w.count))
	each := (mib-1)/(unitMiB*count) + 1 // units on each GPU
	limits := v1.ResourceList{o.names.GPUMem(): *resource.NewQuantity(each*count, resource.DecimalSI)}
	if w.cores != 0 {
		limits[o.names.GPUCore()] = *resource.NewQuantity(int64(w.cores), resource.DecimalSI)
	}
	annotations := map[string]string{o.names.Count(): strconv.Itoa(w.count)}
	for key, value := range map[string]string{o.names.Model(): w.model, o.names.Policy(): w.policy} {
		if value != "" {
			annotations[key] = value
		}
	}
	return o.names.Request(&v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: annotations},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Limits: limits}}}},
	})
}

// spelling says what a pod has to write for what it asks for here; nothing where that
// is the amount as it was given.
func (w wish) spelling(name v1.ResourceName, req placement.Request, unitMiB int64) string {
	amount := strconv.FormatInt(int64(req.Units()), 10)
	if amount == w.memory {
		return ""
	}
	return fmt.Sprintf("note: a pod asks for it as %s: %s, a whole number of units of %s", name, amount, gpu.Format(1, unitMiB))
}

func (o *options) fit(ctx context.Context, l *listing, w wish) error {
	nodes, facts, err := o.cluster.Load(ctx, cluster.Selection{Names: o.nodes, Labels: o.selector})
	if err != nil {
		return err
	}
	if err := cluster.NeedsPods("what fits cannot be told", facts); err != nil {
		return err
	}
	o.learnPolicy(ctx, &facts)
	rows, total, err := o.rooms(nodes, facts, w)
	if err != nil {
		return err
	}
	if err := sortRows(rows, l.sortBy, l.fields); err != nil {
		return err
	}
	report := inspect.Report{Problems: facts.Problems}
	shown := rows
	if l.output == "name" { // nothing else could tell a node where it does not fit
		shown = slices.DeleteFunc(slices.Clone(rows), func(r room) bool { return r.Times == 0 })
	}
	if err := printRows(l, roomView(), report, shown, !l.noHeaders); err != nil {
		return err
	}
	if l.output == "" && !l.noHeaders {
		fmt.Fprintf(o.Out, "\nFits %s in all.\n", timesOf(total))
	}
	if err := o.complain(report); err != nil {
		return err
	}
	switch {
	case len(rows) == 0:
		return fmt.Errorf("it fits nowhere: no node here offers %s", o.names.GPUMem())
	case total == 0:
		return errors.New("it fits nowhere")
	}
	return nil
}

// rooms says of each node how often it fits, and how often in all. How the pod has to ask
// for it is told beside.
func (o *options) rooms(nodes []placement.Node, facts inspect.Facts, w wish) (rows []room, total int, err error) {
	var spellings []string
	for _, n := range nodes {
		if len(n.Devices) == 0 {
			continue
		}
		req, err := w.request(o, n.UnitMiB)
		if err != nil {
			return nil, 0, err
		}
		if s := w.spelling(o.names.GPUMem(), req, n.UnitMiB); s != "" && !slices.Contains(spellings, s) {
			spellings = append(spellings, s)
			fmt.Fprintln(o.ErrOut, s)
		}
		row := room{Node: n.Name}
		if refusal := facts.Nodes[n.Name].Refusal(req); refusal != nil {
			row.Reason = refusal.Message
		} else {
			row.Times, row.Reason = times(req, n, facts.Policy)
		}
		total += row.Times
		rows = append(rows, row)
	}
	return rows, total, nil
}

func roomView() view[room] {
	return view[room]{
		kind: "RoomList",
		name: func(r room) string { return "node/" + r.Node },
		columns: func(inspect.Report) []printers.Column[room] {
			return []printers.Column[room]{
				{Header: "NODE", Cell: func(r room) string { return r.Node }},
				{Header: "TIMES", Cell: func(r room) string { return strconv.Itoa(r.Times) }},
				{Header: "REASON", Cell: func(r room) string { return r.Reason }},
			}
		},
	}
}

// times counts how many pods of a kind a node takes, one after the other, and
// says why when it takes none.
func times(req placement.Request, n placement.Node, policy placement.Policy) (count int, reason string) {
	n = decide.Promised(n, policy)
	for {
		pod := placement.PodRef{UID: fmt.Sprint("fit ", count)}
		chosen, refusal := decide.Decide(n, pod, req, policy)
		if refusal == nil {
			refusal = inspect.Overdraws(req, n)
		}
		switch {
		case refusal == nil:
		case count > 0:
			return count, ""
		default:
			return 0, refusal.Message
		}
		count++
		n = n.With(placement.Holding{Pod: pod, Request: req, Assignment: chosen})
	}
}
