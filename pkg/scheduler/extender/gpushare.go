package extender

import (
	"fmt"
	"net/http"

	"github.com/julienschmidt/httprouter"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// gpusharePrefix is where gpushare's extender has its routes, and hence where a
// kube-scheduler that was set up for it looks for them.
const gpusharePrefix = "/gpushare-scheduler"

// gpushareReport is the answer of gpushare's inspect route. Amounts are in units.
type gpushareReport struct {
	Nodes []gpushareNode `json:"nodes"`
	Error string         `json:"error,omitempty"`
}

type gpushareNode struct {
	Name    string           `json:"name"`
	Total   gpu.Units        `json:"totalGPU"`
	Used    gpu.Units        `json:"usedGPU"`
	Devices []gpushareDevice `json:"devs"`
}

type gpushareDevice struct {
	Index int           `json:"id"`
	Total gpu.Units     `json:"totalGPU"`
	Used  gpu.Units     `json:"usedGPU"`
	Pods  []gpusharePod `json:"pods"`
}

type gpusharePod struct {
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"`
	Used      gpu.Units `json:"usedGPU"` // of this GPU
}

// inspectGPUShare tells of all nodes that offer GPU memory, or of the one that
// is named.
func (e *Extender) inspectGPUShare(w http.ResponseWriter, r *http.Request, params httprouter.Params) {
	report := gpushareReport{Nodes: []gpushareNode{}}
	nodes := e.Cache.Nodes()
	if name := params.ByName("node"); name != "" {
		node, ok := e.Cache.Node(name)
		if nodes = []placement.Node{node}; !ok {
			nodes, report.Error = nil, fmt.Sprintf("node %q is not known", name)
		}
	}
	for _, node := range nodes {
		if len(node.Devices) > 0 {
			report.Nodes = append(report.Nodes, newGPUShareNode(node))
		}
	}
	if err := write(w, http.StatusOK, report); err != nil {
		e.Log.Warn("answer not delivered", zap.String("path", r.URL.Path), zap.Error(err))
	}
}

func newGPUShareNode(node placement.Node) gpushareNode {
	out := gpushareNode{Name: node.Name, Total: node.Allocatable(), Used: node.Requested(), Devices: []gpushareDevice{}}
	for _, d := range node.Devices {
		device := gpushareDevice{Index: d.Index, Total: d.Allocatable, Used: d.Requested, Pods: []gpusharePod{}}
		for _, h := range d.Pods {
			for _, s := range h.Assignment.Shares {
				if s.Device == d.UUID {
					device.Pods = append(device.Pods, gpusharePod{Name: h.Pod.Name, Namespace: h.Pod.Namespace, Used: s.Units})
				}
			}
		}
		out.Devices = append(out.Devices, device)
	}
	return out
}
