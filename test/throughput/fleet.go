package throughput

import (
	"context"
	"encoding/json"
	"fmt"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// What gpumem's device plugin tells of a node.
const (
	gpuMem    = "gpumem.dev/gpu-mem"
	inventory = "gpumem.dev/inventory"
)

const (
	gpusPerNode = 8
	writers     = 32 // requests to the API server at once
)

// model is a kind of GPU; there are as many nodes of each.
type model struct {
	name      string
	memoryMiB int64
	units     int64 // of 1 GiB
	speed     int
}

var models = []model{
	{"NVIDIA A100-SXM4-80GB", 81920, 79, 100},
	{"NVIDIA H100 80GB HBM3", 81559, 79, 317},
	{"NVIDIA L4", 23034, 22, 39},
	{"Tesla T4", 15360, 14, 21},
}

// makeNodes adds nodes to those of the fleet until it has n of them.
func makeNodes(ctx context.Context, client kubernetes.Interface, from, n int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := from; i < n; i++ {
		group.Go(func() error {
			node, err := fakeNode(i)
			if err != nil {
				return err
			}
			_, err = client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
			return err
		})
	}
	return group.Wait()
}

// fakeNode describes the i-th node as a kubelet and gpumem's device plugin would
// have reported it.
func fakeNode(i int) (*v1.Node, error) {
	m := models[i%len(models)]
	annotation, err := describe(m, i)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("gpu-node-%05d", i)
	offers := v1.ResourceList{
		v1.ResourceCPU:    resource.MustParse("64"),
		v1.ResourceMemory: resource.MustParse("512Gi"),
		v1.ResourcePods:   resource.MustParse("250"),
		gpuMem:            *resource.NewQuantity(gpusPerNode*m.units, resource.DecimalSI),
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      map[string]string{v1.LabelHostname: name, v1.LabelArchStable: "amd64", v1.LabelOSStable: "linux"},
			Annotations: map[string]string{inventory: annotation},
		},
		Status: v1.NodeStatus{
			Capacity: offers, Allocatable: offers,
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}},
		},
	}, nil
}

// describe returns the annotation of the i-th node.
func describe(m model, i int) (string, error) {
	type device struct {
		UUID      string `json:"uuid"`
		Index     int    `json:"index"`
		Model     string `json:"model"`
		MemoryMiB int64  `json:"memoryMiB"`
		Units     int64  `json:"units"`
		Speed     int    `json:"speed"`
		Healthy   bool   `json:"healthy"`
	}
	var gpus []device
	for k := range gpusPerNode {
		uuid := fmt.Sprintf("GPU-%08x-%04x-4000-8000-000000000000", i*gpusPerNode+k, k)
		gpus = append(gpus, device{uuid, k, m.name, m.memoryMiB, m.units, m.speed, true})
	}
	value, err := json.Marshal(map[string]any{"v": 1, "unitMiB": 1024, "driverVersion": "580.95.05", "gpus": gpus})
	return string(value), err
}
