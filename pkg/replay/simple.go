package replay

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// ReadSimple reads a fleet and a list of pods in a format for people to write:
//
//	name,gpus,gpu-mem,gpu-model[,cpu][,memory]
//	name,gpu-mem[,gpu-core][,gpu-count][,gpu-model][,arrival][,duration][,cpu][,memory]
//
// gpu-mem is whole units (GiB) of each GPU, gpu-core per cent of each, gpu-model
// of a pod globs separated by "|", arrival and duration seconds, cpu millicores
// and memory MiB of the host. A node without cpu or memory has no end of it; a
// pod without gpu-count wants one GPU, and one without gpu-mem none.
func ReadSimple(name string, nodes, pods io.Reader) (Trace, error) {
	t := Trace{Name: name}
	err := eachRecord(nodes, []string{"name", "gpus", "gpu-mem"}, func(r record) {
		n := Node{Name: r.text("name"), CPU: cmp.Or(r.number("cpu"), Unlimited), Memory: cmp.Or(r.number("memory"), Unlimited)}
		for range min(r.number("gpus"), maxGPUs) {
			n.GPUs = append(n.GPUs, GPU{Model: r.text("gpu-model"), Capacity: gpu.Units(r.number("gpu-mem"))})
		}
		t.Nodes = append(t.Nodes, n)
	})
	if err != nil {
		return Trace{}, fmt.Errorf("nodes: %w", err)
	}
	err = eachRecord(pods, []string{"name", "gpu-mem"}, func(r record) {
		p := Pod{
			Name: r.text("name"), Arrival: r.decimal("arrival"), Duration: r.decimal("duration"),
			Shape: Shape{CPU: r.number("cpu"), Memory: r.number("memory"), Units: gpu.Units(r.number("gpu-mem"))},
		}
		if p.Units > 0 {
			p.GPUs = int(min(cmp.Or(r.number("gpu-count"), 1), maxGPUs+1))
			p.Cores, p.Models = int(min(r.number("gpu-core"), maxUnits)), r.text("gpu-model")
		}
		t.Pods = append(t.Pods, p)
	})
	if err != nil {
		return Trace{}, fmt.Errorf("pods: %w", err)
	}
	slices.SortStableFunc(t.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return t, t.Validate()
}

// AddNodes returns the trace with more nodes like one that it has.
func (t Trace) AddNodes(like string, count int) (Trace, error) {
	i := slices.IndexFunc(t.Nodes, func(n Node) bool { return n.Name == like })
	if i < 0 {
		return Trace{}, fmt.Errorf("there is no node %q to add more of", like)
	}
	model := t.Nodes[i]
	t.Nodes = slices.Clone(t.Nodes)
	for k := range count {
		model.Name = fmt.Sprintf("%s-added-%d", like, k+1)
		t.Nodes = append(t.Nodes, model)
	}
	return t, t.Validate()
}

// RemoveNodes returns the trace without the nodes whose names match a glob.
func (t Trace) RemoveNodes(glob string) (Trace, error) {
	if _, err := path.Match(glob, ""); err != nil {
		return Trace{}, fmt.Errorf("%q: %w", glob, err)
	}
	before := len(t.Nodes)
	t.Nodes = slices.DeleteFunc(slices.Clone(t.Nodes), func(n Node) bool {
		matches, _ := path.Match(glob, n.Name) // its form was checked above
		return matches
	})
	if len(t.Nodes) == before {
		return Trace{}, fmt.Errorf("no node matches %q", strings.TrimSpace(glob))
	}
	return t, t.Validate()
}
