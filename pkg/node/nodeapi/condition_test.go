package nodeapi

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

func failed(d gpu.Device, why string) gpu.Device {
	d.Status = gpu.Unhealthy(why)
	return d
}

func stopped(d gpu.Device) gpu.Device {
	d.Status.Stopped = true
	return d
}

func TestConditionSaysWhichGPUsHaveFailed(t *testing.T) {
	client := fake.NewClientset(&v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	})
	n := NewPublisher(client, names(t), "n1", zap.NewNop())
	ensure := func(inv gpu.Inventory) *v1.NodeCondition {
		t.Helper()
		node, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.writeCondition(t.Context(), node, inv); err != nil {
			t.Fatal(err)
		}
		if node, err = client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if node.Status.Conditions[0].Type != v1.NodeReady && conditionOf(node) == nil {
			t.Errorf("the kubelet's condition is gone: %v", node.Status.Conditions)
		}
		return conditionOf(node)
	}
	if got := ensure(inventory()); got != nil {
		t.Errorf("a node that never had a GPU has %v", got)
	}
	for _, tc := range []struct {
		inv  gpu.Inventory
		want v1.NodeCondition
	}{
		{inventory(gpu0, gpu1), v1.NodeCondition{Status: v1.ConditionTrue, Reason: "GPUsHealthy", Message: "all 2 GPUs are healthy"}},
		{inventory(gpu0, failed(gpu1, "XID 79")), v1.NodeCondition{Status: v1.ConditionFalse, Reason: "GPUUnhealthy", Message: "GPU 1 (GPU-bbbbbbbb): XID 79"}},
		{inventory(failed(gpu0, "lost"), failed(gpu1, "XID 79")), v1.NodeCondition{Status: v1.ConditionFalse, Reason: "GPUUnhealthy", Message: "GPU 0 (GPU-aaaaaaaa): lost; GPU 1 (GPU-bbbbbbbb): XID 79"}},
		{inventory(), v1.NodeCondition{Status: v1.ConditionUnknown, Reason: "NoGPU", Message: "no GPU is offered"}},
	} {
		tc.want.Type = api.GPUsHealthy
		got := ensure(tc.inv)
		if diff := cmp.Diff(&tc.want, got, cmpopts.IgnoreFields(v1.NodeCondition{}, "LastHeartbeatTime", "LastTransitionTime")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		writes := len(client.Actions())
		ensure(tc.inv)
		if len(client.Actions()) != writes+2 { // the test's own reads
			t.Errorf("what is written already was written again: %v", client.Actions()[writes:])
		}
	}
}

func TestTransitionTimeIsThatOfTheStatus(t *testing.T) {
	long := metav1.NewTime(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
	has := condition(inventory(failed(gpu0, "lost")))
	has.LastTransitionTime = long
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1.NodeStatus{Conditions: []v1.NodeCondition{has}}}
	client := fake.NewClientset(node)
	n := NewPublisher(client, names(t), "n1", zap.NewNop())
	for _, tc := range []struct {
		inv  gpu.Inventory
		kept bool
	}{{inventory(failed(gpu0, "XID 48")), true}, {inventory(gpu0), false}} {
		if err := n.writeCondition(t.Context(), node, tc.inv); err != nil {
			t.Fatal(err)
		}
		got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if c := conditionOf(got); c.LastTransitionTime.Equal(&long) != tc.kept {
			t.Errorf("%s since %v, kept: want %t", c.Status, c.LastTransitionTime, tc.kept)
		}
	}
}

func TestCordonedGPUsAreHeeded(t *testing.T) {
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{"gpumem.dev/cordoned-gpus": "GPU-bbbbbbbb, GPU-gone"}}})
	n := NewPublisher(client, names(t), "n1", zap.NewNop())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- n.Run(ctx, func() (gpu.Inventory, <-chan struct{}) { return inventory(gpu0, gpu1), nil }, nothing)
	}()
	annotated(t, client, inventory(gpu0, gpu1)) // cordoned GPUs stay healthy
	if diff := cmp.Diff([]gpu.UUID{"GPU-bbbbbbbb", "GPU-gone"}, n.Cordoned()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAConditionThatIsNotWrittenIsAnError(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n := NewPublisher(fake.NewClientset(), names(t), "n1", zap.NewNop()) // the API server has no such node
	if err := n.writeCondition(t.Context(), node, inventory(gpu0)); err == nil {
		t.Error("the write succeeded")
	}
}
