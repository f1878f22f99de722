package packing

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// GiB maps each GPU model to its assumed memory.
type GiB map[string]gpu.Units

// InGiB returns a published trace with GPU memory in place of shares. Each GPU gets the memory of its
// model. Each pod requests its share of a reference model. The pod's name draws that model in
// proportion to the fleet's GPUs that the pod may use.
//
// The trace records neither the GPU that a pod ran on nor the memory of its GPUs. Shares and the mix
// of GPUs are real, GiB are derived from them.
func (t Trace) InGiB(name string, memory GiB) (Trace, error) {
	out := Trace{Name: name, Pods: slices.Clone(t.Pods)}
	references := make(map[Shape]reference)
	for _, n := range t.Nodes {
		n.GPUs = slices.Clone(n.GPUs)
		for i, g := range n.GPUs {
			capacity, ok := memory[g.Model]
			if !ok {
				return Trace{}, fmt.Errorf("%s: the memory of a %s is unknown", name, g.Model)
			}
			n.GPUs[i].Capacity = capacity
		}
		out.Nodes = append(out.Nodes, n)
	}
	for i := range out.Pods {
		p := &out.Pods[i]
		if p.GPUs == 0 {
			continue
		}
		wants := Shape{GPUs: p.GPUs, Models: p.Models}
		if _, known := references[wants]; !known {
			references[wants] = t.reference(wants)
		}
		whole, ok := memory[references[wants].of(p.Name)]
		if !ok {
			return Trace{}, fmt.Errorf("%s: no node fits pod %s", name, p.Name)
		}
		p.Units = max(1, (p.Units*whole+Milli-1)/Milli)
	}
	return out, nil
}

// reference lists the models that a pod's share may refer to.
type reference struct {
	count  map[string]uint64 // GPUs of each model that the pod may use
	enough map[string]bool   // models that one node has enough GPUs of
	most   string            // the most frequent of the models in enough
}

func (t Trace) reference(wants Shape) reference {
	r := reference{count: make(map[string]uint64), enough: make(map[string]bool)}
	for _, n := range t.Nodes {
		for _, g := range n.GPUs {
			if wants.allows(g.Model) {
				r.count[g.Model]++
				r.enough[g.Model] = r.enough[g.Model] || len(n.GPUs) >= wants.GPUs
			}
		}
	}
	for _, model := range slices.Sorted(maps.Keys(r.count)) {
		if r.enough[model] && r.count[model] > r.count[r.most] {
			r.most = model
		}
	}
	return r
}

// of returns the model that the pod draws by the FNV-1a hash of its name, or the most frequent usable
// one if no node has enough GPUs of the drawn model.
func (r reference) of(pod string) string {
	var all uint64
	for _, n := range r.count {
		all += n
	}
	hash := fnv.New64a()
	hash.Write([]byte(pod)) // never fails
	at := hash.Sum64() % max(1, all)
	for _, model := range slices.Sorted(maps.Keys(r.count)) {
		if at < r.count[model] {
			if r.enough[model] {
				return model
			}
			break
		}
		at -= r.count[model]
	}
	return r.most
}
