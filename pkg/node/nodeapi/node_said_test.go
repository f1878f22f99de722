package nodeapi

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// While a node's label requests another API, the node accepts no pods. Its GPUs keep their health.
func TestANodeThatIsToChangeTakesNoPods(t *testing.T) {
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	n := NewPublisher(client, names(t), "n1", zap.NewNop())
	n.SetAPIs("", []string{api.ByClaims})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- n.Run(ctx, func() (gpu.Inventory, <-chan struct{}) { return inventory(gpu0), nil }, nothing)
	}()
	annotated(t, client, inventory(gpu0))
	<-n.Read()
	said, changed := n.Settings()
	if said.API != "" {
		t.Error("a node without the label is to hand out claims")
	}
	label := func(to string) {
		t.Helper()
		node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node.Labels = map[string]string{names(t).API(): to}
		if _, err := client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label(api.ByClaims)
	<-changed
	if said, _ := n.Settings(); said.API != api.ByClaims {
		t.Error("the label is not told")
	}
	annotated(t, client, inventory(stopped(gpu0)))
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		return err == nil && conditionOf(node) != nil && conditionOf(node).Status == v1.ConditionTrue, err
	})
	if err != nil {
		t.Error("its GPUs are not healthy any more:", err)
	}
	label(api.InShares) // not enabled
	annotated(t, client, inventory(gpu0))
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
