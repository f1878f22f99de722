package explain

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/nodefilter"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// considered is a row of the table: a GPU and its node.
type considered struct {
	node history.Node
	gpu  history.GPU
}

func (o *Options) printConsidered(nodes []history.Node, cores bool) error {
	var rows []considered
	for _, n := range nodes {
		for _, g := range n.GPUs {
			rows = append(rows, considered{n, g})
		}
	}
	return table.List(o.Out, []table.Column[considered]{
		{Header: "NODE", Cell: func(c considered) string { return c.node.Name }},
		{Header: "GPU", Cell: func(c considered) string { return fmt.Sprint(c.gpu.Index) }},
		{Header: "MODEL", Cell: func(c considered) string { return c.gpu.Model }},
		{
			Header: "TAKEN/TOTAL",
			Cell: func(c considered) string {
				taken := reasons.Number(c.gpu.Capacity-c.gpu.Free, c.node.UnitMiB)
				return fmt.Sprintf("%d/%s", taken, reasons.Amount(c.gpu.Capacity, c.node.UnitMiB))
			},
			Share: func(c considered) (part, whole float64) {
				return float64(c.gpu.Capacity - c.gpu.Free), float64(c.gpu.Capacity)
			},
		},
		{Header: "FREE", Cell: func(c considered) string {
			if c.gpu.Unhealthy != "" || !c.gpu.Status.TakesPods() {
				return reasons.Amount(0, c.node.UnitMiB) // as in "kubectl inspect gpumem gpus"
			}
			return reasons.Amount(c.gpu.Free, c.node.UnitMiB)
		}},
		{Header: "FREE-CORE(%)", Hidden: !cores, Cell: freeCores},
		{Header: "VERDICT", Cell: verdict, Colour: func(c considered) table.Colour {
			if c.gpu.Reason == "" && c.node.Reason == "" {
				return table.Green
			}
			return table.Plain
		}},
	}, rows, table.ListOptions{Colours: o.Colours, Bars: o.Bars})
}

func freeCores(c considered) string {
	if c.gpu.FreeCores == nil {
		return "?" // an older scheduler does not report free cores
	}
	return fmt.Sprint(*c.gpu.FreeCores)
}

// verdict describes whether the pod fits on a GPU.
func verdict(c considered) string {
	if c.gpu.Chosen { // even if less memory is free now than the pod requests
		if c.gpu.Unhealthy != "" {
			return "chosen; " + whyOutOfUse(c.gpu)
		}
		return "chosen"
	}
	switch c.gpu.Reason {
	case "", "Fits":
	case "Unhealthy":
		return whyOutOfUse(c.gpu)
	case history.InsufficientCores:
		return "not enough cores free"
	default: // a newer scheduler may send reasons that this version of the command does not know
		return cmp.Or(reasons.OnGPU(c.gpu.Reason), "does not fit: "+c.gpu.Reason)
	}
	switch {
	case c.node.Reason == nodefilter.Withheld:
		return "would fit, but the node's kubelet offers no GPU memory"
	case slices.Contains([]string{nodefilter.Cordoned, nodefilter.NotReady, nodefilter.Coreless, nodefilter.KeptAway, nodefilter.Untolerated, inspect.Overdrawn, decide.Confusable}, c.node.Reason):
		return "would fit, but " + c.node.Message
	case slices.Contains([]string{"TooFew", "Unhealthy", "Occupied", "Insufficient", "Fragmented"}, c.node.Reason):
		return "would fit, but too few GPUs of the node do"
	case c.node.Reason != "" && c.node.Reason != "Fits":
		return "would fit, but the node does not take it: " + cmp.Or(c.node.Message, c.node.Reason)
	default:
		return "fits"
	}
}

// whyOutOfUse returns the reason why a GPU takes no new pods.
func whyOutOfUse(g history.GPU) string {
	switch {
	case g.Status.OnlyCordoned():
		return g.Unhealthy
	case g.Status.Unhealthy:
		return "unhealthy: " + g.Unhealthy
	case g.Unhealthy != "": // the device plugin is stopped, or an older scheduler sends no status
		return "takes no new pods: " + g.Unhealthy
	default:
		return "takes no new pods"
	}
}
