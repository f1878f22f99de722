package placement

import (
	"math"
	"slices"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// WithNominated returns the node with pods that are to come to it, in line by
// priority.
func (n Node) WithNominated(pods []Holding) Node {
	n.Nominated = slices.Clone(pods)
	slices.SortFunc(n.Nominated, moreImportant)
	return n
}

// Reserved returns the node as one pod finds it: the nominated pods that go
// before it hold their memory, on the GPUs where they fit, or else where room is
// being made for them.
//
// Those go before it that have its priority or a higher one. A pod that is
// nominated to the node itself goes before its equals behind it in line, so that
// no two of them wait for one another.
func (n Node) Reserved(pod PodRef, req Request, fallback Policy) Node {
	ahead := slices.IndexFunc(n.Nominated, func(h Holding) bool { return h.Pod.UID == pod.UID })
	if ahead < 0 {
		ahead = len(n.Nominated)
	}
	for _, h := range n.Nominated[:ahead] {
		if h.Request.Priority >= req.Priority {
			h.Assignment, h.Nominated = n.landing(h.Request, fallback), true
			n = n.with(h)
		}
	}
	return n
}

// Promised returns the node with all nominated pods on it, as a pod finds it that
// goes after each of them.
func (n Node) Promised(fallback Policy) Node {
	return n.Reserved(PodRef{}, Request{Priority: math.MinInt32}, fallback)
}

// landing is where a nominated pod goes: none when it does not fit the node,
// whoever leaves.
func (n Node) landing(req Request, fallback Policy) Assignment {
	if !Fit(req, n).Fits() {
		victims, _ := makeRoom(req, n, nil)
		n = n.without(victims)
	}
	chosen, _ := Choose(fallback, req, n)
	return chosen
}

// only returns the node with one of its devices.
func (n Node) only(device gpu.UUID) Node {
	i := slices.IndexFunc(n.Devices, func(d Device) bool { return d.UUID == device })
	n.Devices, n.State = n.Devices[i:i+1], nil
	return n
}

// Holdings returns the pods that hold anything of the node, each once.
func (n Node) Holdings() []Holding { return n.holdings(func(Holding) bool { return true }) }

func (n Node) holdings(wanted func(Holding) bool) []Holding {
	var out []Holding
	add := func(pods []Holding) {
		for _, h := range pods {
			if wanted(h) && !hasPod(out, h) {
				out = append(out, h)
			}
		}
	}
	for _, d := range n.Devices {
		add(d.Pods)
	}
	add(n.Unattributed)
	return out
}

func hasPod(pods []Holding, h Holding) bool {
	for i := range pods { // a Holding is large
		if pods[i].Pod.UID == h.Pod.UID {
			return true
		}
	}
	return false
}

// with returns the node with one more pod on the devices of its assignment.
func (n Node) with(h Holding) Node {
	n.RequestedCPU += h.Request.CPU
	n.Devices, n.State = slices.Clone(n.Devices), nil
	for _, s := range h.Assignment.Shares {
		for i := range n.Devices {
			if d := &n.Devices[i]; d.UUID == s.Device {
				d.Pods = slices.Clone(d.Pods)
				d.charge(h, s)
			}
		}
	}
	return n
}

// without returns the node as it is when some of its pods have left.
func (n Node) without(gone []Holding) Node {
	left := func(h Holding) bool { return hasPod(gone, h) }
	for _, h := range n.holdings(left) {
		n.RequestedCPU -= h.Request.CPU
	}
	n.Devices, n.State = slices.Clone(n.Devices), nil
	for i := range n.Devices {
		d := &n.Devices[i]
		for _, h := range d.Pods {
			if left(h) {
				units, cores := h.Request.Share()
				d.Requested -= units
				d.RequestedCores -= cores
			}
		}
		d.Pods = slices.DeleteFunc(slices.Clone(d.Pods), left)
	}
	n.Unattributed = slices.DeleteFunc(slices.Clone(n.Unattributed), left)
	return n
}
