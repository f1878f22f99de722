package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// Reason says why a request does not fit a node. The zero value means it fits.
type Reason uint8

// The reasons, from what can change least to what can change most.
const (
	Fits              Reason = iota
	NoDevices                // the node offers no GPU
	WeakerEnforcement        // the node cannot hold a container to its grant as the pod demands
	NoSuchDevice             // no GPU of the node passes the pod's globs
	TooLarge                 // no GPU is large enough, were it empty
	TooFew                   // GPUs are large enough, but not as many as wanted
	Unhealthy                // too many of them are not healthy
	Occupied                 // the pod may not be beside the pods that are on them, or they are too many
	Insufficient             // not enough is free, on one GPU or in all
	Fragmented               // enough is free in all, on no GPU alone
)

func (r Reason) String() string {
	names := [...]string{"Fits", "NoDevices", "WeakerEnforcement", "NoSuchDevice", "TooLarge", "TooFew", "Unhealthy", "Occupied", "Insufficient", "Fragmented"}
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// Verdict is the answer for one request on one node.
type Verdict struct {
	Reason  Reason
	Request Request
	Node    Node
}

// Fits reports whether the request fits the node.
func (v Verdict) Fits() bool { return v.Reason == Fits }

// Unresolvable reports whether the request can never fit the node as it is,
// whatever pods leave it. (Kubernetes: UnschedulableAndUnresolvable.)
func (v Verdict) Unresolvable() bool {
	switch v.Reason {
	case NoDevices, WeakerEnforcement, NoSuchDevice, TooLarge, TooFew:
		return true
	default:
		return false
	}
}

// String says in one line what the request needs and what there is.
func (v Verdict) String() string {
	need := v.need()
	switch v.Reason {
	case Fits:
		return need + "; fits"
	case NoDevices:
		return "the node offers no GPU memory: its device plugin has found no GPU, or has not reported yet"
	case WeakerEnforcement:
		has := string(cmp.Or(v.Node.Enforcement, gpu.EnforcementAdvisory))
		if v.Node.Weaker != "" {
			has += " (" + v.Node.Weaker + ")"
		}
		return fmt.Sprintf("wants enforcement %s; this node has %s: ask for that, or for none", v.Request.Enforcement, has)
	case NoSuchDevice:
		return fmt.Sprintf("wants a GPU that matches %s; this node has %s: change %s", globs(v.Request), models(v.Node), v.globbed())
	case TooLarge:
		return fmt.Sprintf("%s; the largest that qualifies here has %s: ask for less, or for more GPUs", need, v.largest())
	case TooFew:
		return fmt.Sprintf("%s; large enough here: %d: ask for fewer GPUs, or for less on each", need, v.largeEnough())
	case Unhealthy, Occupied:
		return need + "; " + v.devices() + v.anywhere()
	case Fragmented:
		free := v.Node.freeFor(v.Request)
		n, _ := gpu.Scale(free.units, v.Node.UnitMiB)
		return fmt.Sprintf("%s; free: %s (%d%s in all, fragmented)%s", need, v.devices(), n, v.cores(free.cores), v.anywhere())
	default:
		free := v.Node.freeFor(v.Request)
		return fmt.Sprintf("%s; free: %s (%s%s in all)%s", need, v.devices(), gpu.Format(free.units, v.Node.UnitMiB), v.cores(free.cores), v.anywhere())
	}
}

// need says what the pod wants, and of which GPUs.
func (v Verdict) need() string {
	units, cores := v.Request.Share()
	s := "needs " + gpu.Format(units, v.Node.UnitMiB) + v.cores(cores) + " on "
	if n := v.Request.GPUs(); n > 1 {
		s += fmt.Sprintf("each of %d GPUs", n)
	} else {
		s += "one GPU"
	}
	if g := globs(v.Request); g != "" {
		s += " that matches " + g
	}
	if v.Request.Policy == Exclusive {
		s += " alone"
	}
	if g := v.Request.ExclusiveGroup; g != "" {
		s += fmt.Sprintf(" apart from exclusive-group %q", g)
	}
	return s
}

// devices lists the devices that pass the pod's globs, each with what it has
// free or why that does not count.
func (v Verdict) devices() string {
	var parts []string
	for _, d := range v.Node.Devices {
		if !v.Request.allows(d) {
			continue
		}
		part := fmt.Sprintf("GPU%d ", d.Index)
		switch left := v.Node.room(d); {
		case !d.Healthy:
			part += "unhealthy (" + cmp.Or(d.Unhealthy, "no reason given") + ")"
		case !v.Node.apart(v.Request, d):
			part += "occupied"
		case !v.Node.serves(v.Request, d):
			part += fmt.Sprintf("has no MPS client left of %d", mpsClients)
		default:
			n, _ := gpu.Scale(left.units, v.Node.UnitMiB)
			part += fmt.Sprint(n) + v.cores(left.cores)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// anywhere tells of the pods that are counted and that nobody sees on a device.
func (v Verdict) anywhere() (s string) {
	if n := len(v.Node.Unattributed); n > 0 {
		s = fmt.Sprintf("; pods whose GPU is not known yet, counted on each: %d", n)
	}
	if n := len(v.Node.holdings(func(h Holding) bool { return h.Nominated })); n > 0 {
		s += fmt.Sprintf("; kept for pods that are nominated to this node: %d", n)
	}
	return s
}

func (v Verdict) largest() string {
	var most gpu.Units
	for _, d := range v.Node.Devices {
		if v.Request.allows(d) {
			most = max(most, d.Capacity)
		}
	}
	return gpu.Format(most, v.Node.UnitMiB) + v.cores(gpu.CoresPerDevice)
}

// cores is what to add to an amount of memory if the pod asks for cores too.
func (v Verdict) cores(percent int) string {
	if v.Request.Cores() == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d%% of cores", percent)
}

func (v Verdict) largeEnough() (n int) {
	for _, d := range v.Node.Devices {
		if v.Request.allows(d) && v.Request.fitsEmpty(d) {
			n++
		}
	}
	return n
}

// globbed names the annotations that the globs are from.
func (v Verdict) globbed() string {
	switch {
	case len(v.Request.UUIDs) == 0:
		return "gpu-model"
	case len(v.Request.Models) == 0:
		return "gpu-uuid"
	default:
		return "gpu-model or gpu-uuid"
	}
}

func globs(r Request) string { return strings.Join(slices.Concat(r.Models, r.UUIDs), ",") }

func models(n Node) string {
	var out []string
	for _, d := range n.Devices {
		if model := cmp.Or(d.Model, "a GPU of unknown model"); !slices.Contains(out, model) {
			out = append(out, model)
		}
	}
	return strings.Join(out, ", ")
}

// room is what a device has left for a pod.
type room struct {
	units gpu.Units
	cores int
}

func (r room) covers(units gpu.Units, cores int) bool { return r.units >= units && r.cores >= cores }

// room returns what is left of a device when each pod without a known device
// is taken to be on it, with all that it holds: how it is split, if it is, is
// not known either.
func (n Node) room(d Device) room {
	r := room{units: d.Free(), cores: d.FreeCores()}
	for _, h := range n.Unattributed {
		r.units = max(0, r.units-h.Request.Units())
		r.cores = max(0, r.cores-h.Request.Cores())
	}
	return r
}

// allows reports whether the pod's globs let it use the device.
func (r Request) allows(d Device) bool {
	return MatchGlobs(r.UUIDs, string(d.UUID)) && MatchModel(r.Models, d.Model)
}

// MatchModel is MatchGlobs for a model, which counts without the maker's name
// too: "A100*" matches "NVIDIA A100-SXM4-80GB".
func MatchModel(globs []string, model string) bool {
	return MatchGlobs(globs, model, strings.TrimPrefix(model, "NVIDIA "))
}

// fitsEmpty reports whether the device would be large enough, were it empty.
func (r Request) fitsEmpty(d Device) bool {
	units, cores := r.Share()
	return units <= d.Capacity && cores <= gpu.CoresPerDevice
}

// apart reports whether the request may be on the device beside the pods that
// are there, or may be there.
func (n Node) apart(r Request, d Device) bool {
	bars := func(h Holding) bool {
		return r.Policy == Exclusive || h.Request.Policy == Exclusive ||
			r.ExclusiveGroup != "" && h.Request.ExclusiveGroup == r.ExclusiveGroup
	}
	return !slices.ContainsFunc(d.Pods, bars) && !slices.ContainsFunc(n.Unattributed, bars)
}

// mpsClients is how many processes the MPS server serves on one GPU (NVIDIA,
// "Multi-Process Service": 48 on Volta and newer).
const mpsClients = 48

// serves reports whether the MPS server, where it enforces grants, has a client
// left on the device for each container of the request. A container counts as one
// process: how many it has is not known before.
func (n Node) serves(r Request, d Device) bool {
	if !n.Enforcement.AtLeast(gpu.EnforcementMPS) {
		return true
	}
	clients := r.processes()
	for _, pods := range [...][]Holding{d.Pods, n.Unattributed} {
		for _, h := range pods {
			clients += h.Request.processes()
		}
	}
	return clients <= mpsClients
}

// processes returns how many containers use the pod's GPUs at once, at most.
func (r Request) processes() int {
	return peak(r.Containers, func(c Container) int {
		if c.Units > 0 {
			return 1
		}
		return 0
	})
}

// freeFor returns what is free in all on the devices that the request may use,
// large enough or not: were it on one of them, it might do.
func (n Node) freeFor(r Request) (sum room) {
	for _, d := range n.Devices {
		if r.allows(d) && d.Healthy && n.apart(r, d) && n.serves(r, d) {
			left := n.room(d)
			sum.units += left.units
			sum.cores += left.cores
		}
	}
	return sum
}

// Fit reports whether the request fits the node, and if not, why. What the pod
// itself already holds of the node must not be in it.
func Fit(req Request, node Node) Verdict {
	_, reason := candidates(req, node)
	return Verdict{Reason: reason, Request: req, Node: node}
}

// Check says whether a device of the node would do for one share of the request,
// and if not, why: the first of NoSuchDevice, TooLarge, Unhealthy, Occupied and
// Insufficient that is so.
func (n Node) Check(r Request, d Device) Reason {
	units, cores := r.Share()
	switch {
	case !r.allows(d):
		return NoSuchDevice
	case !r.fitsEmpty(d):
		return TooLarge
	case !d.Healthy:
		return Unhealthy
	case !n.apart(r, d), !n.serves(r, d):
		return Occupied
	case !n.room(d).covers(units, cores):
		return Insufficient
	default:
		return Fits
	}
}

// Bears reports whether a pod of the node fits on the very devices that it is
// assigned to, beside the others.
func (n Node) Bears(h Holding) bool {
	n = n.without([]Holding{h})
	fits := func(d Device) bool { return n.Check(h.Request, d) == Fits }
	for _, id := range h.Assignment.Devices() {
		if !slices.ContainsFunc(n.Devices, func(d Device) bool { return d.UUID == id && fits(d) }) {
			return false
		}
	}
	return true
}

// candidates returns the devices of the node on which the request fits, or why
// they are not enough: the first check that too few devices pass.
func candidates(req Request, node Node) ([]Device, Reason) {
	if len(node.Devices) == 0 {
		return nil, NoDevices
	}
	if !node.Enforcement.AtLeast(req.Enforcement) {
		return nil, WeakerEnforcement
	}
	units, cores := req.Share()
	want := req.GPUs()
	var failed [Fragmented]int // devices, by check
	var fitting []Device
	for _, d := range node.Devices {
		reason := node.Check(req, d)
		failed[reason]++
		if reason == Fits {
			fitting = append(fitting, d)
		}
	}
	allowed := len(node.Devices) - failed[NoSuchDevice]
	large := allowed - failed[TooLarge]
	healthy := large - failed[Unhealthy]
	apart := healthy - failed[Occupied]
	switch {
	case len(fitting) >= want:
		return fitting, Fits
	case allowed == 0:
		return nil, NoSuchDevice
	case large == 0:
		return nil, TooLarge
	case large < want:
		return nil, TooFew
	case healthy < want:
		return nil, Unhealthy
	case apart < want:
		return nil, Occupied
	case node.freeFor(req).covers(gpu.Units(want)*units, want*cores):
		return nil, Fragmented
	default:
		return nil, Insufficient
	}
}
