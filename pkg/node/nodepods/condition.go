package nodepods

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// heed remembers what people say on the node.
func (n *Node) heed(node *v1.Node) Said {
	said := Said{Cordoned: n.names.CordonedGPUs(node)}
	if label := node.Labels[n.names.API()]; slices.Contains(n.apis, label) {
		said.API = label
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if said.API != n.said.API || !slices.Equal(said.Cordoned, n.said.Cordoned) {
		n.said = said
		close(n.heard)
		n.heard = make(chan struct{})
	}
	select {
	case <-n.read:
	default:
		close(n.read)
	}
	return said
}

func conditionOf(node *v1.Node) *v1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == api.GPUsHealthy {
			return c
		}
	}
	return nil
}

// ensureCondition writes whether the node's GPUs are healthy, if something else
// is written. A node that never had a GPU gets no condition.
func (n *Node) ensureCondition(ctx context.Context, node *v1.Node, inv gpu.Inventory) error {
	want, has := condition(inv), conditionOf(node)
	if has == nil && len(inv.Devices) == 0 || has != nil && has.Status == want.Status && has.Reason == want.Reason && has.Message == want.Message {
		return nil
	}
	want.LastHeartbeatTime, want.LastTransitionTime = metav1.Now(), metav1.Now()
	if has != nil && has.Status == want.Status {
		want.LastTransitionTime = has.LastTransitionTime
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []v1.NodeCondition{want}}})
	if err != nil {
		return fmt.Errorf("encode the condition: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if _, err := n.client.CoreV1().Nodes().Patch(ctx, n.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("write condition %s of node %s: %w", api.GPUsHealthy, n.name, err)
	}
	n.log.Info("condition written", zap.String("node", n.name), zap.String("status", string(want.Status)), zap.String("message", want.Message))
	return nil
}

// condition says whether all GPUs are healthy.
func condition(inv gpu.Inventory) v1.NodeCondition {
	var failed []string
	for _, d := range inv.Devices {
		if !d.Status.Works() {
			failed = append(failed, fmt.Sprintf("GPU %d (%s): %s", d.Index, d.UUID, reasons.Causes(d.Status)))
		}
	}
	switch {
	case len(inv.Devices) == 0:
		return v1.NodeCondition{Type: api.GPUsHealthy, Status: v1.ConditionUnknown, Reason: "NoGPU", Message: "no GPU is offered"}
	case len(failed) > 0:
		return v1.NodeCondition{Type: api.GPUsHealthy, Status: v1.ConditionFalse, Reason: "GPUUnhealthy", Message: strings.Join(failed, "; ")}
	default:
		return v1.NodeCondition{Type: api.GPUsHealthy, Status: v1.ConditionTrue, Reason: "GPUsHealthy", Message: fmt.Sprintf("all %d GPUs are healthy", len(inv.Devices))}
	}
}
