package nodepods

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// removeStartupTaint removes the startup taint once the node offers GPU memory: the kubelet
// advertises it, or the node hands out its GPUs by claims. Until then a cluster autoscaler
// would add another node for a pod that waits for this one.
func (n *Node) removeStartupTaint(ctx context.Context, node *v1.Node) error {
	i := slices.IndexFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == api.StartupTaint })
	if i < 0 || n.api != api.ByClaims && !n.advertised(node) {
		return nil
	}
	path := fmt.Sprintf("/spec/taints/%d", i)
	patch, err := json.Marshal([]map[string]string{
		{"op": "test", "path": path + "/key", "value": api.StartupTaint}, // another taint may have come before it
		{"op": "remove", "path": path},
	})
	if err != nil {
		return fmt.Errorf("encode the patch of taint %s: %w", api.StartupTaint, err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if _, err := n.client.CoreV1().Nodes().Patch(ctx, n.name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("remove taint %s of node %s: %w", api.StartupTaint, n.name, err)
	}
	n.log.Info("startup taint removed", zap.String("node", n.name))
	return nil
}

// advertised reports whether the kubelet advertises the resource that the node offers.
func (n *Node) advertised(node *v1.Node) bool {
	units := node.Status.Allocatable[n.names.Offered(n.api == api.InShares)]
	return !units.IsZero()
}
