package inspect

import (
	"fmt"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// CountFits returns how many pods with this request the node can take one after the other. If the first
// pod does not fit, result reason is the refusal.
func CountFits(req placement.Request, n placement.Node, policy placement.Policy) (count int, reason string) {
	n = decide.Promised(n, policy)
	for {
		pod := placement.PodRef{UID: fmt.Sprint("fit ", count)}
		chosen, refusal := decide.Decide(n, pod, req, policy)
		if refusal == nil {
			refusal = OverdrawnRefusal(req, n)
		}
		switch {
		case refusal == nil:
		case count > 0:
			return count, ""
		default:
			return 0, reasons.Refusal(refusal)
		}
		count++
		n = n.With(placement.Holding{Pod: pod, Request: req, Assignment: chosen})
	}
}
