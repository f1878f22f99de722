package nodepods

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/gpu"
)

// keeping runs a Node that offers an inventory, until it is told to end.
func keeping(t *testing.T, client *fake.Clientset, inv gpu.Inventory) (n *Node, done <-chan error) {
	t.Helper()
	n = NewNode(client, names(t), "n1", zap.NewNop())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(t.Context(), func() (gpu.Inventory, <-chan struct{}) { return inv, nil }) }()
	annotated(t, client, inv)
	return n, ended
}

func TestWithdrawnInventory(t *testing.T) {
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	inv := inventory(gpu0, failed(gpu1, "XID 79"))
	n, done := keeping(t, client, inv)
	var failures atomic.Int32
	client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "" {
			t.Error("the condition is written, and nothing ails the GPUs")
		}
		if failures.Add(1) == 1 {
			return true, nil, errors.New("the API server is busy")
		}
		return false, nil, nil
	})
	withdrawn := inventory(failed(gpu0, "its device plugin is stopped or being replaced"), failed(gpu1, "XID 79"))
	for range 2 {
		if err := n.Withdraw(t.Context()); err != nil {
			t.Fatal(err)
		}
		annotated(t, client, withdrawn) // at the second attempt
	}
	if err := <-done; err != nil || inv.Devices[0].Unhealthy != "" {
		t.Errorf("Run: %v; its source's inventory is %v", err, inv)
	}

	// The next plugin writes what there is, and again when a write of this one comes late.
	keeping(t, client, inv)
	value, err := api.EncodeInventory(withdrawn)
	if err != nil {
		t.Fatal(err)
	}
	late, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{"gpumem.dev/inventory": value}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, late, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	annotated(t, client, inv)
}

func TestWithdrawWaitsNoLongerThanItIsTold(t *testing.T) {
	for name, away := range map[string]bool{"the API server is away": true, "nothing runs": false} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
			n := NewNode(client, names(t), "n1", zap.NewNop())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if away {
				n, _ = keeping(t, client, inventory(gpu0))
				client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
					cancel()
					return true, nil, errors.New("no answer")
				})
			} else {
				cancel()
			}
			if err := n.Withdraw(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "withdraw the inventory of node n1") {
				t.Errorf("error %v, want one that says what was not done", err)
			}
		})
	}
}
