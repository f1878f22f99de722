package nodeapi

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

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// healthOf returns a node whose condition already matches an inventory.
func healthOf(inv gpu.Inventory) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1.NodeStatus{Conditions: []v1.NodeCondition{condition(inv)}}}
}

// keeping runs a Publisher for an inventory, until Withdraw or the end of the test.
func keeping(t *testing.T, client *fake.Clientset, inv gpu.Inventory) (n *Publisher, done <-chan error) {
	t.Helper()
	n = NewPublisher(client, names(t), "n1", zap.NewNop())
	ended := make(chan error, 1)
	go func() {
		ended <- n.Run(t.Context(), func() (gpu.Inventory, <-chan struct{}) { return inv, nil }, nothing)
	}()
	annotated(t, client, inv)
	return n, ended
}

func TestWithdrawnInventory(t *testing.T) {
	inv := inventory(gpu0, failed(gpu1, "XID 79"))
	client := fake.NewClientset(healthOf(inv))
	var fail atomic.Bool
	client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "" {
			t.Error("the condition is written, and nothing ails the GPUs")
		}
		return fail.Swap(false), nil, errors.New("the API server is busy")
	})
	n, done := keeping(t, client, inv)
	fail.Store(true)
	withdrawn := inventory(stopped(gpu0), failed(gpu1, "XID 79"))
	for range 2 {
		if err := n.Withdraw(t.Context()); err != nil {
			t.Fatal(err)
		}
		annotated(t, client, withdrawn) // on the second attempt
	}
	if err := <-done; err != nil || !inv.Devices[0].Status.TakesPods() {
		t.Errorf("Run: %v; its source's inventory is %v", err, inv)
	}

	// The next plugin writes its inventory, and writes it again after a late write of the previous one.
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
	told := func(ctx context.Context, t *testing.T, n *Publisher) {
		t.Helper()
		if err := n.Withdraw(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "withdraw the inventory of node n1") {
			t.Errorf("error %v, want one that says what was not done", err)
		}
	}
	t.Run("the API server is away", func(t *testing.T) {
		client := fake.NewClientset(healthOf(inventory(gpu0)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var away atomic.Bool
		client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			if away.Load() {
				cancel()
			}
			return away.Load(), nil, errors.New("no answer")
		})
		n, _ := keeping(t, client, inventory(gpu0))
		away.Store(true)
		told(ctx, t, n)
	})
	t.Run("nothing runs", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		told(ctx, t, NewPublisher(fake.NewClientset(), names(t), "n1", zap.NewNop()))
	})
}

// nothing is an account without pods.
func nothing() ([]gpu.PodAllocation, bool, <-chan struct{}) { return nil, true, nil }
