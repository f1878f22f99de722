package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// NodeResult is the result of one node for a waiting pod.
type NodeResult struct {
	placement.Verdict
	Refusal    *decide.Refusal // why the node refuses the pod, however much memory is free; nil if it does not
	IsExcluded bool            // the pod's own spec excludes the node

	// OutOfUse are the GPUs that the pod would fit if they were healthy and not cordoned. OutOfUse is empty
	// if the pod fits the node without them, or does not fit the node even with them.
	OutOfUse []placement.Device

	node    NodeFacts
	gap     nearmiss.Gap // distance of the node from a fit
	tainted bool         // only a taint keeps the pod off the node
}

// EvaluateNode returns the result of a node for a pod. kube-scheduler's own reasons to skip the node
// precede the verdict of decide.Decide.
func (f Facts) EvaluateNode(pod WaitFacts, n placement.Node) NodeResult {
	n = decide.Reserved(n, pod.Pod, pod.Request, f.Policy)
	c := NodeResult{Verdict: placement.Verdict{Request: pod.Request, Node: n}, Refusal: pod.ExcludedNodes[n.Name], node: f.Nodes[n.Name]}
	_, refused := decide.Decide(n, pod.Pod, pod.Request, f.Policy)
	if refused != nil && refused.Verdict != nil {
		c.Verdict, c.gap = *refused.Verdict, refused.Gap
	} else {
		c.gap = nearmiss.GapOf(c.Verdict)
	}
	c.OutOfUse = findOutOfUse(c.Verdict)
	nodeRefusal := c.node.Refusal(pod.Request) // the node's refusal, independent of the pod's spec
	if nodeRefusal == nil && c.Fits() {
		nodeRefusal = cmp.Or(OverdrawnRefusal(pod.Request, n), refused)
	}
	if c.IsExcluded = c.Refusal != nil; c.IsExcluded {
		c.tainted = !c.Refusal.Unresolvable && c.Fits() && nodeRefusal == nil
	} else {
		c.Refusal = nodeRefusal
	}
	return c
}

// Tainted returns a text about the first node where a taint is the only obstacle; empty if there is no such node.
// All results must be of one pod that is not placeable on any node.
func Tainted(results ...NodeResult) string {
	for _, c := range results {
		if c.tainted {
			return fmt.Sprintf("%s would fit, but %s", c.Node.Name, reasons.Refusal(c.Refusal))
		}
	}
	return ""
}

// Overdrawn is the refusal reason of a node whose free memory or cores, summed over all GPUs, are too
// small for a request that fits the node's GPUs.
const Overdrawn = "Overdrawn"

// OverdrawnRefusal returns why kube-scheduler rejects a node although the request fits the node's GPUs; nil
// if kube-scheduler accepts the node. kube-scheduler compares only sums. So allocated memory on a GPU that
// the device plugin does not advertise, or beyond a GPU's capacity, reduces the free sum of the other GPUs.
func OverdrawnRefusal(req placement.Request, n placement.Node) *decide.Refusal {
	if n.InSum(req) {
		return nil // the usual case
	}
	n = afterNominations(n)
	freeUnits, freeCores := n.Unrequested()
	short, shortOfCores := req.Units() > freeUnits, req.Cores() > max(0, freeCores)
	var gpuTexts, amounts []string
	var units, maxExcess gpu.Units
	cores, worstIndex := 0, 0
	for _, d := range n.Devices {
		excess, excessCores := d.Excess()
		if !short {
			excess = 0
		}
		if !shortOfCores {
			excessCores = 0
		}
		if excess <= 0 && excessCores <= 0 {
			continue
		}
		why := "out of use"
		if d.Advertised() {
			why = "over-committed"
		}
		gpuTexts = append(gpuTexts, fmt.Sprintf("GPU%d (%s)", d.Index, why))
		units, cores = units+max(0, excess), cores+max(0, excessCores)
		if excess >= maxExcess {
			maxExcess, worstIndex = excess, d.Index
		}
	}
	if len(gpuTexts) == 0 {
		return nil
	}
	if units > 0 {
		amounts = append(amounts, reasons.Amount(units, n.UnitMiB))
	}
	if cores > 0 {
		amounts = append(amounts, fmt.Sprintf("%d per cent of cores", cores))
	}
	return &decide.Refusal{Reason: Overdrawn, Message: fmt.Sprintf(
		"kube-scheduler counts %s of pods on %s against the node's other GPUs: kubectl inspect gpumem drain %s %d",
		strings.Join(amounts, " and "), strings.Join(gpuTexts, ", "), n.Name, worstIndex)}
}

// afterNominations returns the node without its terminating pods, which end before the nominated pods are bound.
// It returns a node without nominated pods unchanged.
func afterNominations(n placement.Node) placement.Node {
	pods := n.Holdings()
	if !slices.ContainsFunc(pods, func(h placement.Holding) bool { return h.Nominated }) {
		return n
	}
	return n.Without(slices.DeleteFunc(pods, func(h placement.Holding) bool { return !h.Terminating }))
}

// findOutOfUse returns the GPUs that a pod would fit if they were healthy and not cordoned. It returns
// none if the pod fits the node without them, or does not fit the node even with them.
func findOutOfUse(v placement.Verdict) (out []placement.Device) {
	// Return early for the many nodes without a fault.
	if v.Fits() || !slices.ContainsFunc(v.Node.Devices, func(d placement.Device) bool { return !d.Status.TakesPods() }) {
		return nil
	}
	inUse := withAllInUse(v.Node)
	if !placement.Fit(v.Request, inUse).Fits() {
		return nil
	}
	for i, d := range v.Node.Devices {
		if !d.Status.TakesPods() && inUse.Check(v.Request, inUse.Devices[i]) == placement.Fits {
			out = append(out, d)
		}
	}
	return out
}

// withAllInUse returns the node with all devices healthy and not cordoned.
func withAllInUse(n placement.Node) placement.Node {
	n.Devices = slices.Clone(n.Devices)
	for i, d := range n.Devices {
		n.Devices[i] = d.With(gpu.Status{ByClaims: d.Status.ByClaims})
	}
	return n
}

// Reasons why a node takes no new pods.
const (
	NodeCordoned = "the node is cordoned"
	NodeNotReady = "the node is NotReady"
)

// Refusal returns why the node refuses this request, however much memory is free; nil if it does not.
func (f NodeFacts) Refusal(req placement.Request) *decide.Refusal {
	if f.Refuses == nil && req.Cores() > 0 {
		return f.RefusesCores
	}
	return f.Refuses
}

// IsPlaceable reports whether the pod fits the node and may go there.
func (c NodeResult) IsPlaceable() bool { return c.Fits() && c.Refusal == nil }

// Explain describes the result in one line: the free memory, or the obstacle.
func (c NodeResult) Explain() string {
	switch {
	case c.Refusal == nil:
		return c.explainVerdict()
	case c.IsExcluded || c.Fits():
		return reasons.Refusal(c.Refusal)
	default:
		return c.explainVerdict() + "; " + reasons.Refusal(c.Refusal)
	}
}

// explainVerdict describes the free memory if the request fits the GPUs, and the obstacle otherwise.
func (c NodeResult) explainVerdict() string {
	if len(c.OutOfUse) == 0 {
		return reasons.Verdict(c.Verdict)
	}
	var causes []string
	for _, same := range Alike(c.OutOfUse, c.node.State) {
		causes = append(causes, c.explainOutOfUse(same))
	}
	return "would fit, but " + strings.Join(causes, "; ")
}

// explainOutOfUse describes unhealthy or cordoned GPUs with the same state. For GPUs that are only cordoned, it
// adds the command that uncordons them.
func (c NodeResult) explainOutOfUse(gpus []placement.Device) string {
	indexes := make([]string, 0, len(gpus))
	for _, d := range gpus {
		indexes = append(indexes, fmt.Sprint(d.Index))
	}
	text, argument := "GPU"+strings.Join(indexes, ", GPU")+" are ", "GPU"
	if len(indexes) == 1 {
		text, argument = "GPU"+indexes[0]+" is ", indexes[0]
	}
	text += c.node.State(gpus[0])
	if gpus[0].Status.OnlyCordoned() {
		text += ": kubectl inspect gpumem uncordon " + c.Node.Name + " " + argument
	}
	return text
}

// Compare orders results, the best first: by the kind of obstacle (see the package comment) and then by
// the node's distance from a fit.
func (c NodeResult) Compare(other NodeResult) int {
	return cmp.Or(cmp.Compare(c.rank(), other.rank()), c.gap.Compare(other.gap))
}

func (c NodeResult) rank() int {
	switch {
	case c.IsExcluded && c.Refusal.Unresolvable:
		return 6
	case c.IsExcluded:
		return 5
	case c.IsPlaceable():
		return 0
	case c.Fits():
		return 1
	case len(c.OutOfUse) > 0:
		return 2
	case c.Refusal == nil:
		return 3
	default:
		return 4
	}
}

// bestNode returns the first placeable result of a pod or, if there is none, the best result. Without nodes, the
// result's node has no name. If the pod is not placeable, result tainted is the text of Tainted.
func (f Facts) bestNode(pod WaitFacts, nodes []placement.Node) (best NodeResult, tainted string) {
	best = NodeResult{Verdict: placement.Fit(pod.Request, placement.Node{})}
	for _, n := range nodes {
		if len(n.Devices) == 0 {
			continue
		}
		c := f.EvaluateNode(pod, n)
		if best.Node.Name == "" || c.Compare(best) < 0 {
			best = c
		}
		if best.IsPlaceable() {
			return best, ""
		}
		tainted = cmp.Or(tainted, Tainted(c))
	}
	if best.IsExcluded {
		tainted = "" // the result names the taint itself
	}
	return best, tainted
}
