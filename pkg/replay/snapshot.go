package replay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// SnapshotVersion is the form of a snapshot: fields are added without a new
// version, not renamed or removed.
const SnapshotVersion = "gpumem.dev/snapshot/v1"

// Snapshot is a live cluster as a trace: its nodes with GPUs, and the pods that
// hold GPU memory or wait for it. It says of no pod where it is: a replay places
// them again.
type Snapshot struct {
	APIVersion string         `json:"apiVersion"`
	Nodes      []SnapshotNode `json:"nodes"`
	Pods       []SnapshotPod  `json:"pods"`
}

// SnapshotNode is a node. What its CPU is may not be known: then it is 0.
type SnapshotNode struct {
	Name string        `json:"name"`
	CPU  int64         `json:"cpuMilli,omitempty"` // what other pods leave of it
	GPUs []SnapshotGPU `json:"gpus"`
}

// SnapshotGPU is a healthy GPU.
type SnapshotGPU struct {
	Model string    `json:"model"`
	Units gpu.Units `json:"units"`
}

// SnapshotPod is what a pod asks for.
type SnapshotPod struct {
	Name   string    `json:"name"`
	CPU    int64     `json:"cpuMilli,omitempty"`
	GPUs   int       `json:"gpus"`
	Units  gpu.Units `json:"units"` // of each GPU
	Cores  int       `json:"cores,omitempty"`
	Models string    `json:"models,omitempty"` // globs separated by "|"
}

// NewSnapshot makes a snapshot of nodes with their pods, and of the requests of
// those that wait, by name.
func NewSnapshot(nodes []placement.Node, waiting map[string]placement.Request) Snapshot {
	s := Snapshot{APIVersion: SnapshotVersion, Nodes: []SnapshotNode{}, Pods: []SnapshotPod{}}
	for _, n := range nodes {
		held := int64(0)
		for _, h := range n.Holdings() {
			held += h.Request.CPU
			s.Pods = append(s.Pods, snapshotPod(h.Pod.String(), h.Request))
		}
		node := SnapshotNode{Name: n.Name, GPUs: []SnapshotGPU{}}
		if n.CPU > 0 {
			node.CPU = max(1, n.CPU-n.RequestedCPU+held)
		}
		for _, d := range n.Devices {
			if d.Status.TakesPods() && d.Allocatable > 0 {
				node.GPUs = append(node.GPUs, SnapshotGPU{Model: d.Model, Units: d.Allocatable})
			}
		}
		if len(node.GPUs) > 0 {
			s.Nodes = append(s.Nodes, node)
		}
	}
	for name, req := range waiting {
		s.Pods = append(s.Pods, snapshotPod(name, req))
	}
	slices.SortFunc(s.Pods, func(a, b SnapshotPod) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

func snapshotPod(name string, req placement.Request) SnapshotPod {
	units, cores := req.Share()
	return SnapshotPod{Name: name, CPU: req.CPU, GPUs: req.GPUs(), Units: units, Cores: cores, Models: strings.Join(req.Models.Texts(), "|")}
}

// ReadSnapshot reads a snapshot as a trace.
func ReadSnapshot(name string, from io.Reader) (Trace, error) {
	var s Snapshot
	if err := json.NewDecoder(from).Decode(&s); err != nil {
		return Trace{}, fmt.Errorf("%s: %w", name, err)
	}
	if s.APIVersion != SnapshotVersion {
		return Trace{}, fmt.Errorf("%s: apiVersion is %q, want %q, as kubectl inspect gpumem snapshot writes it", name, s.APIVersion, SnapshotVersion)
	}
	t := Trace{Name: name}
	for _, n := range s.Nodes {
		node := Node{Name: n.Name, CPU: cmp.Or(n.CPU, Unlimited), Memory: Unlimited}
		for _, g := range n.GPUs {
			node.GPUs = append(node.GPUs, GPU{Model: g.Model, Capacity: g.Units})
		}
		t.Nodes = append(t.Nodes, node)
	}
	for _, p := range s.Pods {
		t.Pods = append(t.Pods, Pod{Name: p.Name, Shape: Shape{CPU: p.CPU, GPUs: p.GPUs, Units: p.Units, Cores: p.Cores, Models: p.Models}})
	}
	slices.SortStableFunc(t.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return t, t.Validate()
}
