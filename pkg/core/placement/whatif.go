package placement

import (
	"cmp"
	"slices"
)

// Only returns the node with only the given devices.
func (n Node) Only(devices ...Device) Node {
	n.Devices = devices
	return n
}

// Holdings returns the pods on the node, each once.
func (n Node) Holdings() []Holding { return n.holdings(func(*Holding) bool { return true }) }

func (n Node) holdings(wanted func(*Holding) bool) []Holding {
	var out []Holding
	add := func(h *Holding) {
		if wanted(h) && !HasPod(out, *h) {
			out = append(out, *h)
		}
	}
	for _, d := range n.Devices {
		for _, h := range d.Pods {
			add(h)
		}
	}
	for i := range n.Unattributed {
		add(&n.Unattributed[i])
	}
	return out
}

// HasPod reports whether the list contains the pod of h.
func HasPod(pods []Holding, h Holding) bool {
	for i := range pods { // avoid copying Holdings
		if pods[i].Pod.UID == h.Pod.UID {
			return true
		}
	}
	return false
}

// With returns the node with one more pod on the devices of its assignment. If the node lacks one of
// these devices, the pod becomes unattributed, as in NewNode.
func (n Node) With(h Holding) Node {
	n.RequestedCPU += h.Request.CPU
	h.Allocated = nil // this allocation was on its old node
	if n.lacks(&h) && !h.Nominated {
		n.Unattributed = append(slices.Clip(n.Unattributed), h)
		return n
	}
	n.Devices = slices.Clone(n.Devices)
	for i := range n.Devices {
		n.Devices[i].Pods = slices.Clip(n.Devices[i].Pods) // the clone must not share its Pods with n
	}
	n.charge(&h, h.Assignment.Devices())
	return n
}

// Without returns the node after some of its pods have left.
func (n Node) Without(gone []Holding) Node {
	left := func(h *Holding) bool { return HasPod(gone, *h) }
	for _, h := range n.holdings(left) {
		n.RequestedCPU -= h.Request.CPU
	}
	n.Devices = slices.Clone(n.Devices)
	for i := range n.Devices {
		d := &n.Devices[i]
		for _, h := range d.Pods {
			if left(h) {
				s := h.ShareOn(d.UUID)
				d.Requested -= s.Units
				d.RequestedCores -= s.Cores
			}
		}
		d.Pods = slices.DeleteFunc(slices.Clone(d.Pods), left)
	}
	n.Unattributed = slices.DeleteFunc(slices.Clone(n.Unattributed), func(h Holding) bool { return left(&h) })
	return n
}

// WithExpected returns the node with the expected pods on their devices, except the pod that is being
// placed.
func (n Node) WithExpected(except PodRef) Node {
	expected := n.Expected
	n.Expected = nil
	for _, h := range expected {
		if h.Pod.UID != except.UID {
			n = n.With(h)
		}
	}
	return n
}

// WithNominated returns the node with nominated pods, ordered by priority. Within a priority, pods with
// known GPUs come first, then pods that wait for evictions, then the other pods, the longest wait
// first.
func (n Node) WithNominated(pods []Holding) Node {
	n.Nominated = slices.Clone(pods)
	slices.SortFunc(n.Nominated, func(a, b Holding) int {
		return cmp.Or(
			cmp.Compare(b.Request.Priority, a.Request.Priority),
			CompareBool(a.Assignment.None(), b.Assignment.None()),
			a.Waits.Compare(b.Waits),
			MoreImportant(a, b),
		)
	})
	return n
}
