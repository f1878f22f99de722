package packing

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

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
}

// Shape is the request of a pod. Pods of one shape are interchangeable.
type Shape struct {
	CPU    int64 // millicores
	Memory int64 // MiB of the host

	GPUs   int       // 0: none
	Units  gpu.Units // of each GPU
	Models string    // globs separated by "|"; empty: any
}

// Total returns the units that the shape requests on all its GPUs together.
func (s Shape) Total() gpu.Units { return s.Units * gpu.Units(s.GPUs) }

// allows reports whether the shape may use a GPU of that model.
func (s Shape) allows(model string) bool {
	return s.Models == "" || placement.NewGlobs(splitModels(s.Models)...).Match(model)
}

func splitModels(models string) []string { return strings.Split(models, "|") }

// Trace is a fleet and the pods that arrive.
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

// Demand returns the units that all pods request.
func (t Trace) Demand() (sum gpu.Units) {
	for _, p := range t.Pods {
		sum += p.Total()
	}
	return sum
}

// Milli is the capacity of a GPU in a trace whose pods request a share of any GPU.
const Milli = 1000

// Read reads a node list and a pod list in the format of Alibaba's trace cluster-trace-gpu-v2023:
//
//	sn,cpu_milli,memory_mib,gpu,model[,gpu_units]
//	name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec,...]
//
// In the published lists gpu_milli is thousandths of a GPU. A node list with the column gpu_units, the
// units of each GPU, makes it units of that size.
func Read(name, nodes, pods string) (Trace, error) {
	t := Trace{Name: name}
	err := eachRecord(nodes, func(text func(string) string, number func(string) int64) {
		device := GPU{Model: text("model"), Capacity: gpu.Units(cmp.Or(number("gpu_units"), Milli))}
		t.Nodes = append(t.Nodes, Node{
			Name: text("sn"), CPU: number("cpu_milli"), Memory: number("memory_mib"),
			GPUs: slices.Repeat([]GPU{device}, int(number("gpu"))),
		})
	})
	if err != nil {
		return Trace{}, err
	}
	err = eachRecord(pods, func(text func(string) string, number func(string) int64) {
		p := Pod{Name: text("name"), Shape: Shape{CPU: number("cpu_milli"), Memory: number("memory_mib"), GPUs: int(number("num_gpu"))}}
		if p.GPUs > 0 {
			p.Units, p.Models = gpu.Units(number("gpu_milli")), strings.Trim(text("gpu_spec"), "|")
		}
		t.Pods = append(t.Pods, p)
	})
	if err != nil {
		return Trace{}, err
	}
	slices.SortStableFunc(t.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	if t.Capacity() == 0 || t.Demand() == 0 {
		return Trace{}, fmt.Errorf("%s: the nodes have %d units of GPU memory, and the pods request %d", name, t.Capacity(), t.Demand())
	}
	return t, nil
}

// eachRecord calls each for every line of a CSV file with a header. The functions that each gets read
// a column by its name; a missing column is empty, or 0.
func eachRecord(file string, each func(text func(string) string, number func(string) int64)) error {
	from, err := os.Open(file)
	if err != nil {
		return err
	}
	defer from.Close()
	lines, err := csv.NewReader(from).ReadAll()
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for i, line := range lines[min(1, len(lines)):] {
		text := func(column string) string {
			if at := slices.Index(lines[0], column); at >= 0 {
				return line[at]
			}
			return ""
		}
		each(text, func(column string) int64 {
			n, wrong := strconv.ParseInt(cmp.Or(text(column), "0"), 10, 32)
			if (wrong != nil || n < 0) && err == nil {
				err = fmt.Errorf("%s: line %d: column %s: %q: want a whole number of 0 or more", file, i+2, column, text(column))
			}
			return n
		})
	}
	return err
}
