package inspect

import (
	"fmt"
	"slices"
	"strings"
)

// Troubles returns the faults of a node: its own and its GPUs' reasons for taking no new pods, an
// unreadable inventory, and pods on unknown GPUs. GPUs with the same fault share an entry.
func (n Node) Troubles() (out []string) {
	if n.Problem != "" {
		out = append(out, "its inventory cannot be read: "+n.Problem)
	}
	if n.Closed != "" {
		out = append(out, n.Closed)
	}
	unhealthy := slices.DeleteFunc(slices.Clone(n.GPUs), func(g GPU) bool { return g.Healthy })
	for _, same := range Alike(unhealthy, func(g GPU) string { return g.Unhealthy }) {
		var indexes []string
		for _, g := range same {
			indexes = append(indexes, fmt.Sprint(g.Index))
		}
		out = append(out, fmt.Sprintf("GPU%s: %s", strings.Join(indexes, ","), same[0].Unhealthy))
	}
	if len(n.Unattributed) > 0 {
		out = append(out, fmt.Sprintf("pods on no known GPU: %d", len(n.Unattributed)))
	}
	return out
}

// Trouble returns the report with only the nodes that have faults (see Troubles).
func (r Report) Trouble() Report {
	r.Nodes = slices.DeleteFunc(slices.Clone(r.Nodes), func(n Node) bool { return len(n.Troubles()) == 0 })
	r.Selected = true
	r.sum()
	return r
}
