package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/closest"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// Chance is the result of one node for a waiting pod.
type Chance struct {
	placement.Verdict
	Refusal *decide.Refusal // why the node refuses the pod, however much is free; nil if it does not
	KeptOff bool            // the pod's own spec excludes the node

	// OutOfUse are the GPUs that the pod would fit on if they were healthy and not cordoned. It is empty if
	// the GPUs have another fault too.
	OutOfUse []placement.Device

	node    NodeFacts
	gap     closest.Gap // distance of the node from a fit
	tainted bool        // only a taint keeps the pod off the node
}

// Chance returns the result of a node for a pod: the verdict of decide.Decide and, before that, the
// reasons for which kube-scheduler would not ask about the node.
func (f Facts) Chance(pod WaitFacts, n placement.Node) Chance {
	n = decide.Reserved(n, pod.Pod, pod.Request, f.Policy)
	c := Chance{Verdict: placement.Verdict{Request: pod.Request, Node: n}, Refusal: pod.KeptOff[n.Name], node: f.Nodes[n.Name]}
	_, refused := decide.Decide(n, pod.Pod, pod.Request, f.Policy)
	if refused != nil && refused.Verdict != nil {
		c.Verdict, c.gap = *refused.Verdict, refused.Gap
	} else {
		c.gap = closest.Of(c.Verdict)
	}
	c.OutOfUse = fittingIfInUse(c.Verdict)
	own := c.node.Refusal(pod.Request) // the node's refusal, independent of the pod's spec
	if own == nil && c.Fits() {
		own = cmp.Or(Overdraws(pod.Request, n), refused)
	}
	if c.KeptOff = c.Refusal != nil; c.KeptOff {
		c.tainted = !c.Refusal.Unresolvable && c.Fits() && own == nil
	} else {
		c.Refusal = own
	}
	return c
}

// Tainted names the first node that only its taint closes to the pod, and the taint; empty if there is
// none. The chances are the results of nodes for one pod, and none is good.
func Tainted(chances ...Chance) string {
	for _, c := range chances {
		if c.tainted {
			return fmt.Sprintf("%s would fit, but %s", c.Node.Name, reasons.Refusal(c.Refusal))
		}
	}
	return ""
}

// Overdrawn is the reason of a node whose sum over all GPUs is too small for a request that fits on one
// GPU.
const Overdrawn = "Overdrawn"

// Overdraws returns why kube-scheduler does not send a request to a node although it fits on the node's
// GPUs; nil if it does. kube-scheduler compares only sums, so memory that pods hold on a GPU that is out
// of use, or beyond the capacity of a GPU, reduces the free amount of the other GPUs.
func Overdraws(req placement.Request, n placement.Node) *decide.Refusal {
	if n.InSum(req) {
		return nil // the usual case
	}
	n = onceCome(n)
	freeUnits, freeCores := n.Unrequested()
	short, shortOfCores := req.Units() > freeUnits, req.Cores() > max(0, freeCores)
	var where, what []string
	var units, most gpu.Units
	cores, worst := 0, 0
	for _, d := range n.Devices {
		over, coresOver := d.Excess()
		if !short {
			over = 0
		}
		if !shortOfCores {
			coresOver = 0
		}
		if over <= 0 && coresOver <= 0 {
			continue
		}
		why := "out of use"
		if d.Advertised() {
			why = "over-committed"
		}
		where = append(where, fmt.Sprintf("GPU%d (%s)", d.Index, why))
		units, cores = units+max(0, over), cores+max(0, coresOver)
		if over >= most {
			most, worst = over, d.Index
		}
	}
	if len(where) == 0 {
		return nil
	}
	if units > 0 {
		what = append(what, reasons.Amount(units, n.UnitMiB))
	}
	if cores > 0 {
		what = append(what, fmt.Sprintf("%d per cent of cores", cores))
	}
	return &decide.Refusal{Reason: Overdrawn, Message: fmt.Sprintf(
		"kube-scheduler counts %s of pods on %s against the node's other GPUs: kubectl inspect gpumem drain %s %d",
		strings.Join(what, " and "), strings.Join(where, ", "), n.Name, worst)}
}

// onceCome returns the node as it will be once its nominated pods have arrived: without the terminating
// pods, which have then left. A node without nominated pods stays as it is.
func onceCome(n placement.Node) placement.Node {
	pods := n.Holdings()
	if !slices.ContainsFunc(pods, func(h placement.Holding) bool { return h.Nominated }) {
		return n
	}
	return n.Without(slices.DeleteFunc(pods, func(h placement.Holding) bool { return !h.Terminating }))
}

// fittingIfInUse returns the GPUs that a pod would fit on if they were healthy and not cordoned. It
// returns none if the request fits without them, or does not fit with them.
func fittingIfInUse(v placement.Verdict) (out []placement.Device) {
	// Return early for the many nodes without a fault.
	if v.Fits() || !slices.ContainsFunc(v.Node.Devices, func(d placement.Device) bool { return !d.Status.TakesPods() }) {
		return nil
	}
	inUse := allInUse(v.Node)
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

// allInUse returns the node with all devices healthy and not cordoned.
func allInUse(n placement.Node) placement.Node {
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

// Refusal returns why the node takes no new pod with this request, however much is free; nil if it does.
func (f NodeFacts) Refusal(req placement.Request) *decide.Refusal {
	if f.Refuses == nil && req.Cores() > 0 {
		return f.RefusesCores
	}
	return f.Refuses
}

// Good reports whether the pod fits the node and may go there.
func (c Chance) Good() bool { return c.Fits() && c.Refusal == nil }

// Why describes the result in one line: the free memory, or the obstacle.
func (c Chance) Why() string {
	switch {
	case c.Refusal == nil:
		return c.lacks()
	case c.KeptOff || c.Fits():
		return reasons.Refusal(c.Refusal)
	default:
		return c.lacks() + "; " + reasons.Refusal(c.Refusal)
	}
}

// lacks describes why the node's GPUs do not satisfy the request.
func (c Chance) lacks() string {
	if len(c.OutOfUse) == 0 {
		return reasons.Verdict(c.Verdict)
	}
	var causes []string
	for _, same := range Alike(c.OutOfUse, c.node.State) {
		causes = append(causes, c.because(same))
	}
	return "would fit, but " + strings.Join(causes, "; ")
}

// because describes GPUs of one state that are out of use. For cordoned GPUs it adds the command that
// uncordons them.
func (c Chance) because(gpus []placement.Device) string {
	indexes := make([]string, 0, len(gpus))
	for _, d := range gpus {
		indexes = append(indexes, fmt.Sprint(d.Index))
	}
	which, one := "GPU"+strings.Join(indexes, ", GPU")+" are ", "GPU"
	if len(indexes) == 1 {
		which, one = "GPU"+indexes[0]+" is ", indexes[0]
	}
	which += c.node.State(gpus[0])
	if gpus[0].Status.OnlyCordoned() {
		which += ": kubectl inspect gpumem uncordon " + c.Node.Name + " " + one
	}
	return which
}

// Compare orders chances, the better one first: the one that passed more checks or, among equals, the
// one whose node is closer to a fit.
func (c Chance) Compare(other Chance) int {
	return cmp.Or(cmp.Compare(c.rank(), other.rank()), c.gap.Compare(other.gap))
}

func (c Chance) rank() int {
	switch {
	case c.KeptOff && c.Refusal.Unresolvable:
		return 6
	case c.KeptOff:
		return 5
	case c.Good():
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

// best returns the best chance of a pod, or the first good one. Without nodes, the chance has a node
// without a name. If the chance is not good, tainted is the result of Tainted.
func (f Facts) best(pod WaitFacts, nodes []placement.Node) (best Chance, tainted string) {
	best = Chance{Verdict: placement.Fit(pod.Request, placement.Node{})}
	for _, n := range nodes {
		if len(n.Devices) == 0 {
			continue
		}
		c := f.Chance(pod, n)
		if best.Node.Name == "" || c.Compare(best) < 0 {
			best = c
		}
		if best.Good() {
			return best, ""
		}
		tainted = cmp.Or(tainted, Tainted(c))
	}
	if best.KeptOff {
		tainted = "" // the chance names the taint itself
	}
	return best, tainted
}
