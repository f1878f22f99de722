package cli_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

// NodeIndex evaluates the same node constraints only once, because all pods of a template share them.
func TestPodsThatSayTheSameOfNodesShareTheAnswer(t *testing.T) {
	where := cluster.NewNodeIndex()
	inv := kubetest.Inventory("gpu-a", 16)
	where.Add(kubetest.Node(t, "gpu-a", inv), inv)
	one, same := kubetest.Pod(t, "ml/one", "", 3), kubetest.Pod(t, "ml/same", "", 3)
	other := kubetest.With(kubetest.Pod(t, "ml/other", "", 3), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"name": "gpu-b"} })
	address := func(p *v1.Pod) string { return fmt.Sprintf("%p", where.ExcludedNodes(p)) }
	if address(one) != address(same) || address(one) == address(other) || len(where.ExcludedNodes(other)) != 1 {
		t.Errorf("%s, %s and another %s with %v", address(one), address(same), address(other), where.ExcludedNodes(other))
	}
}
