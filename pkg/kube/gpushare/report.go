package gpushare

import (
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Report is the answer of gpushare's inspect route. Amounts are in units.
type Report struct {
	Nodes []reportNode `json:"nodes"`
	Error string       `json:"error,omitempty"`
}

type reportNode struct {
	Name    string         `json:"name"`
	Total   gpu.Units      `json:"totalGPU"`
	Used    gpu.Units      `json:"usedGPU"`
	Devices []reportDevice `json:"devs"`
}

type reportDevice struct {
	Index int         `json:"id"`
	Total gpu.Units   `json:"totalGPU"`
	Used  gpu.Units   `json:"usedGPU"`
	Pods  []reportPod `json:"pods"`
}

type reportPod struct {
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"`
	Used      gpu.Units `json:"usedGPU"` // of this GPU
}

// NewReport tells of the nodes that offer GPU memory, and what is wrong with the question.
func NewReport(nodes []placement.Node, problem string) Report {
	out := Report{Nodes: []reportNode{}, Error: problem}
	for _, node := range nodes {
		if len(node.Devices) > 0 {
			out.Nodes = append(out.Nodes, newReportNode(node))
		}
	}
	return out
}

func newReportNode(node placement.Node) reportNode {
	out := reportNode{Name: node.Name, Total: node.Allocatable(), Devices: []reportDevice{}}
	for _, h := range node.Unattributed {
		out.Used += h.Request.Units()
	}
	for _, d := range node.Devices {
		out.Used += d.Requested
		device := reportDevice{Index: d.Index, Total: d.Allocatable, Used: d.Requested, Pods: []reportPod{}}
		for _, h := range d.Pods {
			for _, s := range h.Assignment.Shares {
				if s.Device == d.UUID {
					device.Pods = append(device.Pods, reportPod{Name: h.Pod.Name, Namespace: h.Pod.Namespace, Used: s.Units})
				}
			}
		}
		out.Devices = append(out.Devices, device)
	}
	return out
}
