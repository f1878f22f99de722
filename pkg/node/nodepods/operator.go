package nodepods

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// ClientsStopped reads from the API server whether NVIDIA's GPU Operator currently keeps driver clients off the
// node. It does so from before it unloads the driver until it has loaded the next one.
func (n *Node) ClientsStopped(ctx context.Context) (bool, error) {
	list, err := n.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: nodeSelector(n.name)})
	if err != nil {
		return false, fmt.Errorf("read node %s: %w", n.name, err)
	}
	return slices.ContainsFunc(list.Items, func(node v1.Node) bool { return node.Name == n.name && api.GPUClientsStopped(&node) }), nil
}
