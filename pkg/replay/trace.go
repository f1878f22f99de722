package replay

import (
	"fmt"
	"math"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Unlimited is an amount of CPU or host memory that never runs out: a trace
// that does not tell of them has it.
const Unlimited = math.MaxInt64 / 4

// Node is one machine of a fleet.
type Node struct {
	Name   string
	CPU    int64 // millicores
	Memory int64 // MiB of the host
	GPUs   []GPU
}

// GPU is one GPU of a node.
type GPU struct {
	Model    string
	Capacity gpu.Units
}

// Pod is one pod of a trace.
type Pod struct {
	Name string
	Shape

	Arrival  float64 // seconds from the beginning of the trace
	Duration float64 // seconds; 0: for good
}

// Shape is what a pod asks for. Pods of one shape are interchangeable.
type Shape struct {
	CPU    int64 // millicores
	Memory int64 // MiB of the host

	GPUs   int       // 0: none
	Units  gpu.Units // of each GPU
	Cores  int       // per cent of each GPU's multiprocessors
	Models string    // globs separated by "|"; empty: any
}

// Total returns the units that the shape asks for, of all its GPUs together.
func (s Shape) Total() gpu.Units { return s.Units * gpu.Units(s.GPUs) }

// Trace is a fleet and the pods that come to it.
type Trace struct {
	Name  string
	Nodes []Node // by name
	Pods  []Pod
}

// Capacity returns the units of all GPUs.
func (t Trace) Capacity() (sum gpu.Units) {
	for _, n := range t.Nodes {
		for _, g := range n.GPUs {
			sum += g.Capacity
		}
	}
	return sum
}

// Demand returns the units that all pods ask for.
func (t Trace) Demand() (sum gpu.Units) {
	for _, p := range t.Pods {
		sum += p.Total()
	}
	return sum
}

// Validate reports what makes a trace unusable.
func (t Trace) Validate() error {
	names := make(map[string]bool)
	for _, n := range t.Nodes {
		switch {
		case n.Name == "":
			return fmt.Errorf("%s: a node has no name", t.Name)
		case names[n.Name]:
			return fmt.Errorf("%s: node %s is listed twice", t.Name, n.Name)
		case n.CPU < 0 || n.Memory < 0:
			return fmt.Errorf("%s: node %s has negative CPU or memory", t.Name, n.Name)
		}
		names[n.Name] = true
		for i, g := range n.GPUs {
			if g.Capacity <= 0 || g.Capacity > maxUnits {
				return fmt.Errorf("%s: GPU %d of node %s has %d units, want 1 to %d", t.Name, i, n.Name, g.Capacity, maxUnits)
			}
		}
	}
	for _, p := range t.Pods {
		if err := p.validate(); err != nil {
			return fmt.Errorf("%s: pod %s: %w", t.Name, p.Name, err)
		}
	}
	if t.Capacity() == 0 {
		return fmt.Errorf("%s: the fleet has no GPU", t.Name)
	}
	if t.Demand() == 0 {
		return fmt.Errorf("%s: no pod asks for GPU memory", t.Name)
	}
	return nil
}

// maxUnits bounds amounts so that no sum overflows.
const maxUnits = 1 << 30

// maxGPUs bounds the GPUs of one pod, as the extender does.
const maxGPUs = 64

func (p Pod) validate() error {
	switch {
	case p.CPU < 0 || p.Memory < 0:
		return fmt.Errorf("negative CPU or memory")
	case p.GPUs < 0 || p.GPUs > maxGPUs:
		return fmt.Errorf("asks for %d GPUs, want 0 to %d", p.GPUs, maxGPUs)
	case p.Units < 0 || p.Units > maxUnits:
		return fmt.Errorf("asks for %d units of a GPU, want 0 to %d", p.Units, maxUnits)
	case p.GPUs > 0 && p.Units == 0:
		return fmt.Errorf("asks for GPUs and nothing of them")
	case p.Cores < 0 || p.Cores > gpu.CoresPerDevice:
		return fmt.Errorf("asks for %d%% of a GPU's cores, want 0 to %d", p.Cores, gpu.CoresPerDevice)
	case p.Arrival < 0 || p.Duration < 0 || math.IsNaN(p.Arrival+p.Duration):
		return fmt.Errorf("arrival or duration is negative or no number")
	}
	return nil
}

// allows reports whether the shape may use a GPU of that model.
func (s Shape) allows(model string) bool {
	return s.Models == "" || placement.NewGlobs(splitModels(s.Models)...).Match(model)
}

func splitModels(models string) []string { return strings.Split(models, "|") }
