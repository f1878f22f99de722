package placement

import (
	"cmp"
	"strings"
)

// Policy is the name of a rule that chooses GPUs and nodes.
type Policy string

// The names of the policies.
const (
	Binpack   Policy = "binpack"
	Spread    Policy = "spread"
	Exclusive Policy = "exclusive"
)

// policies is the only list of policies. The annotation, the flags, the admission policies, the chart's schema
// and the documentation take the names from it or are compared with it.
var policies = [...]policy{
	{
		name: Binpack, cluster: true, priced: true, devices: compareFullest, nodes: preferFullest,
		doc: [2]string{"the GPU with the least free memory that suffices", "the node on whose GPU the least stays free, then the node with the least free"},
	},
	{
		name: Spread, cluster: true, devices: compareEmptiest, nodes: preferEmptiest,
		doc: [2]string{"the GPU with the largest part free", "the node whose GPUs have the largest part free, then the node with the largest part free, then the node with the most free"},
	},
	{
		name: Exclusive, priced: true, devices: compareFullest, nodes: preferFullest,
		doc: [2]string{"an empty GPU, which the pod does not share", "as the chart's `nodePolicy`"},
	},
}

// policy is a row of the table.
type policy struct {
	name    Policy
	cluster bool // administrators can choose it for pods that name no policy
	priced  bool // the first value of nodes counts units, so that the ranking can add a cost to it

	devices func(a, b *Device) int      // orders the GPUs of a node, the preferred one first
	nodes   func(NodeChoice) [4]float64 // orders nodes: lower values, compared from the first on, are preferred
	doc     [2]string                   // the preferred GPU and the preferred node, in Markdown
}

// NodeChoice describes a node and the GPUs that a request would get there, for the comparison by policy.
type NodeChoice struct {
	GPUs        Policy  // the policy that picked the GPUs
	Left        float64 // units that stay free on the picked GPUs
	Share       float64 // free fraction of the fullest picked GPU, before the placement
	Free        float64 // units free on the node
	Allocatable float64 // units of the node
}

// unknown is the row of policies that are not in the table.
var unknown = policy{
	devices: func(_, _ *Device) int { return 0 },
	nodes:   func(NodeChoice) [4]float64 { return [4]float64{} },
}

// row returns the policy's row.
func (p Policy) row() *policy {
	for i := range policies {
		if policies[i].name == p {
			return &policies[i]
		}
	}
	return &unknown
}

// IsKnown reports whether the policy is in the table. Parsers reject unknown policies.
func (p Policy) IsKnown() bool { return p.row() != &unknown }

// OfCluster reports whether administrators can choose the policy for pods that name none.
func (p Policy) OfCluster() bool { return p.row().cluster }

// Priced reports whether the first value of NodeOrder counts units, so that the ranking can add a cost to it.
func (p Policy) Priced() bool { return p.row().priced }

// NodeOrder returns the policy's values for a node. Of two nodes, the one with the lower values is
// preferred; the first difference decides.
func (p Policy) NodeOrder(c NodeChoice) [4]float64 { return p.row().nodes(c) }

// Doc describes the GPU and the node that the policy prefers, in Markdown.
func (p Policy) Doc() (gpu, node string) {
	row := p.row()
	return row.doc[0], row.doc[1]
}

// Policies returns the names of all policies, in the order of the table.
func Policies() (names []Policy) {
	for i := range policies {
		names = append(names, policies[i].name)
	}
	return names
}

// ClusterPolicies returns the names of the policies that administrators can choose for pods that name none.
func ClusterPolicies() (names []Policy) {
	for _, name := range Policies() {
		if name.OfCluster() {
			names = append(names, name)
		}
	}
	return names
}

// JoinPolicies joins names for messages: "binpack, spread or exclusive".
func JoinPolicies(names []Policy) string {
	var out strings.Builder
	for i, name := range names {
		switch {
		case i == 0:
		case i == len(names)-1:
			out.WriteString(" or ")
		default:
			out.WriteString(", ")
		}
		out.WriteString(string(name))
	}
	return out.String()
}

func compareFullest(a, b *Device) int { return cmp.Compare(a.Free(), b.Free()) }

func compareEmptiest(a, b *Device) int {
	return cmp.Or(cmp.Compare(b.FreeShare(), a.FreeShare()), cmp.Compare(b.Free(), a.Free()))
}

func preferFullest(c NodeChoice) [4]float64 { return [4]float64{c.Left, c.Free} }

// preferEmptiest compares the free fraction of the picked GPUs only if Spread picked them. Binpack
// picks the fullest GPU that suffices, which says little about the node: a node with one nearly full GPU
// and seven empty ones would rank behind a node whose GPUs are all half full.
func preferEmptiest(c NodeChoice) [4]float64 {
	share := 0.0
	if c.GPUs == Spread {
		share = c.Share
	}
	return [4]float64{-share, -c.Free / max(1, c.Allocatable), -c.Free, -c.Left}
}
