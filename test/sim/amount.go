package sim

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// amount is so much of both resources: units of memory, and per cent of cores.
type amount struct {
	units, cores int
	shares       bool // the units are shares of GPUs
}

func (a amount) plus(b amount) amount {
	a.units, a.cores = a.units+b.units, a.cores+b.cores
	return a
}

func (a amount) minus(b amount) amount {
	a.units, a.cores = a.units-b.units, a.cores-b.cores
	return a
}

// or returns the larger of the two, of each.
func (a amount) or(b amount) amount {
	return amount{units: max(a.units, b.units), cores: max(a.cores, b.cores)}
}

// over returns the part of each of so many GPUs, rounded up.
func (a amount) over(gpus int) amount {
	return amount{units: (a.units + gpus - 1) / gpus, cores: (a.cores + gpus - 1) / gpus}
}

// covers reports whether there is enough for b. Who asks for no cores does not
// mind that there are too few.
func (a amount) covers(b amount) bool {
	return a.shares == b.shares && a.units >= b.units && (b.cores == 0 || a.cores >= b.cores)
}

// exceeds reports whether there is more than in b of something that is needed.
func (a amount) exceeds(b, need amount) bool {
	return a.units > b.units && need.units > 0 || a.cores > b.cores && need.cores > 0
}

// at points to the amount of one resource.
func (a *amount) at(r gpu.Resource) *int {
	if r == gpu.Cores {
		return &a.cores
	}
	return &a.units
}

func (a amount) of(r gpu.Resource) int { return *a.at(r) }

// allCores is what a GPU has of them.
const allCores = 100

// inAnyOrder returns the resources of the run, as a range over a map does.
func (w *World) inAnyOrder() []gpu.Resource {
	if len(w.resources) == 2 && w.rng.IntN(2) == 0 {
		return []gpu.Resource{gpu.Cores, gpu.Memory}
	}
	return w.resources
}

// someCores is so many in a run with cores, and none in another.
func (w *World) someCores(n int) int {
	if w.cfg.Cores {
		return n
	}
	return 0
}

func (w *World) nameOf(r gpu.Resource, shares bool) v1.ResourceName {
	if r == gpu.Cores {
		return w.names.GPUCore()
	}
	return w.names.Offered(shares)
}

// quantities is an amount as Kubernetes writes it. What nobody asks for is left
// out of a container's, and what is not offered of a node's.
func (w *World) quantities(a amount, shares bool) v1.ResourceList {
	out := make(v1.ResourceList)
	for _, r := range w.resources {
		if n := a.of(r); n > 0 || r == gpu.Memory {
			out[w.nameOf(r, shares)] = *resource.NewQuantity(int64(n), resource.DecimalSI)
		}
	}
	return out
}

// allocatable is what pods can have of a node, by its status.
func (w *World) allocatable(node *v1.Node) (a amount) {
	_, a.shares = node.Status.Allocatable[w.names.GPUShares()]
	for _, r := range w.resources {
		q := node.Status.Allocatable[w.nameOf(r, a.shares)]
		*a.at(r) = int(q.Value())
	}
	return a
}
