package inspect

import (
	"fmt"
	"slices"
	"strings"
)

// Troubles say what keeps new pods off a node or off GPUs of it, or cannot be read. GPUs with the
// same trouble are named together.
func (n Node) Troubles() (out []string) {
	if n.Problem != "" {
		out = append(out, "its inventory cannot be read: "+n.Problem)
	}
	if n.Closed != "" {
		out = append(out, n.Closed)
	}
	why := make(map[string][]string)
	var said []string
	for _, g := range n.GPUs {
		if g.Healthy {
			continue
		}
		if why[g.Unhealthy] == nil {
			said = append(said, g.Unhealthy)
		}
		why[g.Unhealthy] = append(why[g.Unhealthy], fmt.Sprint(g.Index))
	}
	for _, text := range said {
		out = append(out, fmt.Sprintf("GPU%s: %s", strings.Join(why[text], ","), text))
	}
	if len(n.Unattributed) > 0 {
		out = append(out, fmt.Sprintf("pods on no known GPU: %d", len(n.Unattributed)))
	}
	return out
}

// Trouble returns the report with those nodes alone that have trouble.
func (r Report) Trouble() Report {
	r.Nodes = slices.DeleteFunc(slices.Clone(r.Nodes), func(n Node) bool { return len(n.Troubles()) == 0 })
	r.Selected = true
	r.sum()
	return r
}
