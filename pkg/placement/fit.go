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
	Unhealthy                // they would have room, but are not healthy
	Occupied                 // the pod wants GPUs for itself, or apart from others, and these are not
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
	units, cores := v.Request.Share()
	need := "needs " + amount(v.Node, units, cores) + " on "
	if n := v.Request.GPUs(); n > 1 {
		need += fmt.Sprintf("each of %d GPUs", n)
	} else {
		need += "one GPU"
	}
	switch v.Reason {
	case Fits:
		return need + "; fits"
	case NoDevices:
		return "the node offers no GPU memory: its device plugin has found no GPU, or has not reported yet"
	case WeakerEnforcement:
		return fmt.Sprintf("wants enforcement %s; this node has %s", v.Request.Enforcement, cmp.Or(v.Node.Enforcement, gpu.EnforcementAdvisory))
	case NoSuchDevice:
		return fmt.Sprintf("wants a GPU that matches %s; this node has %s", globs(v.Request), models(v.Node))
	case TooLarge:
		return fmt.Sprintf("%s; the largest that qualifies here has %s: ask for less, or for more GPUs", need, amount(v.Node, v.largest(), 0))
	case TooFew:
		return fmt.Sprintf("%s; only %d here are large enough", need, v.largeEnough())
	case Unhealthy:
		return need + "; " + v.perDevice(func(d Device) string {
			if d.Healthy {
				return v.free(d, cores > 0)
			}
			return "unhealthy (" + cmp.Or(d.Unhealthy, "no reason given") + ")"
		})
	case Occupied:
		return need + v.apart() + "; " + v.perDevice(func(d Device) string { return fmt.Sprintf("%d pods", len(d.Pods)) })
	default:
		list := v.perDevice(func(d Device) string { return v.free(d, cores > 0) })
		n, unit := gpu.Scale(v.freeInAll(), v.Node.UnitMiB)
		if v.Reason == Fragmented {
			return fmt.Sprintf("%s; free: %s (%d in all, fragmented)", need, list, n)
		}
		return fmt.Sprintf("%s; free: %s (%d %s in all)", need, list, n, unit)
	}
}

func (v Verdict) apart() string {
	if v.Request.Policy == Exclusive {
		return " alone"
	}
	return fmt.Sprintf(" apart from exclusive-group %q", v.Request.ExclusiveGroup)
}

func (v Verdict) perDevice(say func(Device) string) string {
	parts := make([]string, 0, len(v.Node.Devices))
	for _, d := range v.Node.Devices {
		parts = append(parts, fmt.Sprintf("GPU%d %s", d.Index, say(d)))
	}
	return strings.Join(parts, ", ")
}

func (v Verdict) free(d Device, withCores bool) string {
	n, _ := gpu.Scale(v.Node.room(d).units, v.Node.UnitMiB)
	if withCores {
		return fmt.Sprintf("%d and %d%% of cores", n, v.Node.room(d).cores)
	}
	return fmt.Sprint(n)
}

func (v Verdict) freeInAll() (sum gpu.Units) {
	for _, d := range v.Node.Devices {
		sum += v.Node.room(d).units
	}
	return sum
}

func (v Verdict) largest() (most gpu.Units) {
	for _, d := range v.Node.Devices {
		if v.Request.allows(d) {
			most = max(most, d.Capacity)
		}
	}
	return most
}

func (v Verdict) largeEnough() (n int) {
	units, _ := v.Request.Share()
	for _, d := range v.Node.Devices {
		if v.Request.allows(d) && d.Capacity >= units {
			n++
		}
	}
	return n
}

func amount(n Node, units gpu.Units, cores int) string {
	s := gpu.Format(units, n.UnitMiB)
	if cores > 0 {
		s += fmt.Sprintf(" and %d%% of cores", cores)
	}
	return s
}

func globs(r Request) string { return strings.Join(slices.Concat(r.Models, r.UUIDs), ",") }

func models(n Node) string {
	var out []string
	for _, d := range n.Devices {
		if !slices.Contains(out, d.Model) {
			out = append(out, d.Model)
		}
	}
	return strings.Join(out, ", ")
}

// room is what a device has left for a pod.
type room struct {
	units gpu.Units
	cores int
}

// room returns what is left of a device when each pod without a known device
// is taken to be on it.
func (n Node) room(d Device) room {
	r := room{units: d.Free(), cores: d.FreeCores()}
	for _, h := range n.Unattributed {
		units, cores := h.Request.Share()
		r.units = max(0, r.units-units)
		r.cores = max(0, r.cores-cores)
	}
	return r
}

// allows reports whether the pod's globs let it use the device.
func (r Request) allows(d Device) bool {
	return MatchGlobs(r.Models, d.Model) && MatchGlobs(r.UUIDs, string(d.UUID))
}

// apartFrom reports whether the pod may be on the device beside the pods that
// are there.
func (r Request) apartFrom(d Device) bool {
	if r.Policy == Exclusive && len(d.Pods) > 0 {
		return false
	}
	return !slices.ContainsFunc(d.Pods, func(h Holding) bool {
		return h.Request.Policy == Exclusive ||
			r.ExclusiveGroup != "" && h.Request.ExclusiveGroup == r.ExclusiveGroup
	})
}

// Fit reports whether the request fits the node, and if not, why. What the pod
// itself already holds of the node must not be in it.
func Fit(req Request, node Node) Verdict {
	_, reason := candidates(req, node)
	return Verdict{Reason: reason, Request: req, Node: node}
}

// candidates returns the devices of the node on which the request fits, or why
// there are not enough of them. It makes one pass and keeps the reason that
// the most devices got past.
func candidates(req Request, node Node) ([]Device, Reason) {
	if len(node.Devices) == 0 {
		return nil, NoDevices
	}
	if !node.Enforcement.AtLeast(req.Enforcement) {
		return nil, WeakerEnforcement
	}
	units, cores := req.Share()
	want := req.GPUs()
	var allowed, large, healthy, apart, roomy int
	var free gpu.Units
	var fitting []Device
	for _, d := range node.Devices {
		if !req.allows(d) {
			continue
		}
		allowed++
		if d.Capacity < units || cores > gpu.CoresPerDevice {
			continue
		}
		large++
		if !d.Healthy {
			continue
		}
		healthy++
		if !req.apartFrom(d) {
			continue
		}
		apart++
		left := node.room(d)
		free += left.units
		if left.units < units {
			continue
		}
		roomy++
		if left.cores >= cores {
			fitting = append(fitting, d)
		}
	}
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
	case roomy < want && free >= gpu.Units(want)*units:
		return nil, Fragmented
	default:
		return nil, Insufficient
	}
}
