package extender

import (
	"fmt"
	"net/http"

	"github.com/julienschmidt/httprouter"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/gpushare"
)

// gpusharePrefix is where gpushare's extender has its routes, and hence where a
// kube-scheduler that was set up for it looks for them.
const gpusharePrefix = "/gpushare-scheduler"

// inspectGPUShare tells of all nodes that offer GPU memory, or of the one that
// is named.
func (e *Extender) inspectGPUShare(w http.ResponseWriter, r *http.Request, params httprouter.Params) {
	nodes, problem := e.Cache.Nodes(), ""
	if name := params.ByName("node"); name != "" {
		node, ok := e.Cache.Node(name)
		if nodes = []placement.Node{node}; !ok {
			nodes, problem = nil, fmt.Sprintf("node %q is not known", name)
		}
	}
	if err := write(w, http.StatusOK, gpushare.NewReport(nodes, problem)); err != nil {
		e.Log.Warn("answer not delivered", zap.String("path", r.URL.Path), zap.Error(err))
	}
}
