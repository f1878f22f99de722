package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/printers"
	"github.com/gpumem/gpumem/pkg/report/table"
)

func countNodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// policy returns the policy for the pod's placement; empty if unknown.
func (e explanation) policy() string {
	if e.Policy == "" && e.Fallback != "" {
		return e.Fallback + " (the cluster's; the pod sets none)"
	}
	return e.Policy
}

// gpus returns the indexes of the pod's GPUs.
func (e explanation) gpus() string {
	if e.Node == "" || e.hasNoGPU {
		return ""
	}
	return cmp.Or(e.Indexes, "not known yet")
}

// usageLine compares the pod's usage with its allocation, and suggests a better request.
func (e explanation) usageLine() string {
	if e.Usage == nil {
		return ""
	}
	s := fmt.Sprintf("%d of %d MiB", e.Usage.UsedMiB, e.granted.MiB)
	if e.Usage.PeakMiB != nil {
		s += fmt.Sprintf(", peak %d", *e.Usage.PeakMiB)
	}
	if e.Usage.SM != nil {
		s += fmt.Sprintf(", and %d%% of a GPU's time", *e.Usage.SM)
	}
	if n := printers.Advised(e.granted, e.Usage); n > 0 {
		s += fmt.Sprintf("; ask for %d instead of %d", n, e.granted.Units)
	}
	return s
}

func (o *Options) print(e explanation) error {
	out := o.Out
	fmt.Fprintf(out, "Pod %s/%s %s\n", table.Clean(e.Namespace), table.Clean(e.Name), table.Clean(e.Summary))
	type labelled struct{ label, text string }
	lines := []labelled{{"Asks for:", e.Asks}, {"Policy:", e.policy()}, {"Node:", e.Node}, {"GPU:", e.gpus()}}
	for _, model := range e.Preferred {
		lines = append(lines, labelled{"Preferred:", model})
	}
	for _, line := range append(lines, labelled{"Evicted:", e.Evicted}, labelled{"Leaving:", e.Terminating}, labelled{"Replaces:", e.Replaced}, labelled{"Uses:", e.usageLine()}, labelled{"Health:", e.Health}, labelled{"State:", e.State}, labelled{"To do:", e.Advice}) {
		if line.text != "" {
			fmt.Fprintf(out, "%-11s%s\n", line.label, table.Clean(line.text))
		}
	}
	boundNodes := e.nodesAtBinding()
	if len(e.Now) > 0 && len(boundNodes) == 0 {
		fmt.Fprintf(out, "\n%s:\n", e.nodesTitle())
		if err := o.printConsidered(e.Now, e.cores); err != nil {
			return err
		}
		if e.omittedNodes > 0 {
			fmt.Fprintf(out, "and %d more nodes; --all shows them\n", e.omittedNodes)
		}
		for _, line := range e.legend {
			fmt.Fprintln(out, table.Clean(line))
		}
	}
	if e.recordMissing {
		fmt.Fprintln(out, "\ngpumem's scheduler has restarted since it placed the pod, and has no record of\nits decisions.")
	}
	if e.Decided == nil {
		return nil
	}
	fmt.Fprintf(out, "\nDecided (first attempt %s ago, %s in all):\n", printers.Age(e.Decided.First), cmdutil.Times(e.Decided.Tries))
	for _, d := range slices.Backward(e.Decided.Decisions) {
		fmt.Fprintf(out, "  %s ago  %-10s  %s\n", printers.Age(d.Time), d.Verb, table.Clean(outcome(d)))
		for _, line := range details(d) {
			fmt.Fprintf(out, "      %s\n", table.Clean(line))
		}
	}
	if len(boundNodes) > 0 {
		fmt.Fprintln(out, "\nThe GPUs of the node when it was bound:")
		return o.printConsidered(boundNodes, e.cores)
	}
	return nil
}

func (e explanation) nodesTitle() string {
	if e.Node != "" {
		return "The GPUs of the node now"
	}
	return "Now"
}

// nodesAtBinding returns the state of the node at the pod's binding; none if the scheduler has no record.
func (e explanation) nodesAtBinding() []history.Node {
	if e.Decided != nil {
		for _, d := range e.Decided.Decisions {
			if d.Verb == history.Bind && len(d.Nodes) > 0 {
				return d.Nodes
			}
		}
	}
	return nil
}

// outcome describes a decision in a line.
func outcome(d history.Decision) string {
	switch {
	case d.Verb == history.Filter && d.Result == history.Unfit && len(d.Nodes) > 0: // the message describes only the first node
		return d.Result + ": " + fitCount(d)
	case d.Message != "":
		return d.Result + ": " + d.Message
	case d.Verb == history.Filter:
		return fitCount(d)
	case d.Verb == history.Prioritize:
		var best []string
		for _, n := range d.Nodes[:min(3, len(d.Nodes))] {
			best = append(best, fmt.Sprintf("%s %d", n.Name, *n.Score))
		}
		return fmt.Sprintf("best of %s (scores up to 10): %s", countNodes(d.Asked), strings.Join(best, ", "))
	default:
		return strings.TrimSpace(d.Result + " " + d.Node)
	}
}

// fitCount renders the number of nodes that the pod fits, of those that kube-scheduler asked about. The total
// excludes nodes that kube-scheduler had already rejected.
func fitCount(d history.Decision) string {
	return fmt.Sprintf("fits on %d of the %s that kube-scheduler asked about", d.Fit, countNodes(d.Asked))
}

// details explains a decision: the reason for a ranking that differs from the policy's, or the reasons why the pod
// does not fit the recorded nodes. Nodes with the same message share a line.
func details(d history.Decision) (lines []string) {
	if d.Why != "" {
		return []string{d.Why}
	}
	if d.Verb != history.Filter || len(d.Nodes) == 0 {
		return nil
	}
	printed := 0
	groups := inspect.Alike(d.Nodes, func(n history.Node) string { return n.Message })
	for _, same := range groups[:min(shownNodes, len(groups))] {
		var names []string
		for _, n := range same {
			names = append(names, n.Name)
		}
		lines = append(lines, strings.Join(names, ", ")+": "+same[0].Message)
		printed += len(same)
	}
	if more := d.Asked - d.Fit - printed; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more nodes", more))
	}
	return lines
}
