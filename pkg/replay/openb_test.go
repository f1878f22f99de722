package replay

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Milli is the capacity of a GPU in a trace whose pods ask for a share of
// whatever GPU they get.
const Milli = 1000

// ReadOpenB reads a fleet and a list of pods in the format of Alibaba's trace
// cluster-trace-gpu-v2023 ("openb"):
//
//	sn,cpu_milli,memory_mib,gpu,model
//	name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec,...]
//
// Pods ask for thousandths of a GPU, so every GPU has 1000 units.
func ReadOpenB(name string, nodes, pods io.Reader) (Trace, error) {
	t := Trace{Name: name}
	err := eachRecord(nodes, []string{"sn", "cpu_milli", "memory_mib", "gpu", "model"}, func(r record) {
		n := Node{Name: r.text("sn"), CPU: r.number("cpu_milli"), Memory: r.number("memory_mib")}
		for range min(r.number("gpu"), maxGPUs) {
			n.GPUs = append(n.GPUs, GPU{Model: r.text("model"), Capacity: Milli})
		}
		t.Nodes = append(t.Nodes, n)
	})
	if err != nil {
		return Trace{}, fmt.Errorf("nodes: %w", err)
	}
	err = eachRecord(pods, []string{"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}, func(r record) {
		p := Pod{Name: r.text("name"), Shape: Shape{
			CPU: r.number("cpu_milli"), Memory: r.number("memory_mib"),
			GPUs: int(r.number("num_gpu")), Units: gpu.Units(r.number("gpu_milli")),
			Models: strings.Trim(r.text("gpu_spec"), "|"),
		}}
		if p.GPUs == 0 {
			p.Units, p.Models = 0, ""
		}
		t.Pods = append(t.Pods, p)
	})
	if err != nil {
		return Trace{}, fmt.Errorf("pods: %w", err)
	}
	slices.SortStableFunc(t.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return t, t.Validate()
}

// GiB is how much memory a GPU of each model is taken to have.
type GiB map[string]gpu.Units

// InGiB returns an openb trace with GPU memory in place of shares: GPUs have
// the memory of their model, and a pod asks for its share of a reference model,
// which is drawn by its name in proportion to the fleet's GPUs that it may use.
//
// The trace says neither on which GPU a pod ran nor how much memory its GPUs
// had; shares and the mix of GPUs are real, GiB are derived from them.
func (t Trace) InGiB(name string, memory GiB) (Trace, error) {
	out := Trace{Name: name, Pods: slices.Clone(t.Pods)}
	references := make(map[Shape]reference)
	for _, n := range t.Nodes {
		n.GPUs = slices.Clone(n.GPUs)
		for i, g := range n.GPUs {
			capacity, ok := memory[g.Model]
			if !ok {
				return Trace{}, fmt.Errorf("%s: how much memory a %s has is not known", name, g.Model)
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
			return Trace{}, fmt.Errorf("%s: no node can hold pod %s", name, p.Name)
		}
		p.Units = max(1, (p.Units*whole+Milli-1)/Milli)
	}
	return out, out.Validate()
}

// reference is of which models a pod's share may be taken.
type reference struct {
	count  map[string]uint64 // of GPUs of each model that the pod may use
	enough map[string]bool   // models that a node has enough GPUs of
	most   string            // the most frequent of these
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

// of returns the model for a pod: any that it may use, or the most frequent of
// those with enough GPUs on a node.
func (r reference) of(pod string) string {
	if drawn := draw(pod, r.count); r.enough[drawn] {
		return drawn
	}
	return r.most
}

// draw picks a key by the FNV-1a hash of a name, in proportion to the counts.
func draw(name string, count map[string]uint64) string {
	var all uint64
	for _, n := range count {
		all += n
	}
	hash := fnv.New64a()
	hash.Write([]byte(name)) // never fails
	at := hash.Sum64() % max(1, all)
	for _, key := range slices.Sorted(maps.Keys(count)) {
		if at < count[key] {
			return key
		}
		at -= count[key]
	}
	return ""
}
