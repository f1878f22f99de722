package snapshot_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/replay"
)

func TestSnapshotIsATraceOfTheCluster(t *testing.T) {
	cpu := func(amount string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceCPU: resource.MustParse(amount)}
	}
	inv := clitest.Inventory("gpu-a", 16, 80, 24)
	inv.Devices[2].Status = gpu.Unhealthy("XID 79")
	node := clitest.Node(t, "gpu-a", inv)
	node.Status.Allocatable = cpu("16")
	train := clitest.Pod(t, "ml/train", "gpu-a", 10, clitest.UUID("gpu-a", 0))
	train.Spec.Containers[0].Resources.Requests = cpu("2")
	other := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "plain", UID: "plain"}, Spec: v1.PodSpec{
		NodeName: "gpu-a", Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: cpu("500m")}}},
	}}
	client := fake.NewClientset(node, train, other, clitest.Pod(t, "ml/waits", "", 8), clitest.Node(t, "cpu-1", gpu.Inventory{}))
	stdout, stderr, err := clirun.Inspect(client, "snapshot", "-o", "json")
	if err != nil || stderr != "warning: GPU2 of node gpu-a is left out: it is unhealthy (XID 79)\n" {
		t.Fatalf("error %v, stderr %q", err, stderr)
	}
	got, err := replay.ReadSnapshot("cluster", strings.NewReader(stdout))
	if err != nil {
		t.Fatal(err)
	}
	want := replay.Trace{
		Name: "cluster",
		Nodes: []replay.Node{{Name: "gpu-a", CPU: 15_500, Memory: replay.Unlimited, GPUs: []replay.GPU{
			{Model: "NVIDIA A100", Capacity: 16}, {Model: "NVIDIA A100", Capacity: 80},
		}}},
		Pods: []replay.Pod{
			{Name: "ml/train", Shape: replay.Shape{CPU: 2000, GPUs: 1, Units: 10}},
			{Name: "ml/waits", Shape: replay.Shape{GPUs: 1, Units: 8}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("trace (-want +got):\n%s", diff)
	}
	if _, _, err := clirun.Inspect(client, "snapshot", "-o", "yaml"); err == nil || !strings.Contains(err.Error(), `--output is "yaml", want json`) {
		t.Errorf("error %v, want that only json is known", err)
	}
}
