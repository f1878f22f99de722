package load

import (
	"encoding/json"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Names that users of gpumem see.
const (
	gpuMem    = "gpumem.dev/gpu-mem"
	inventory = "gpumem.dev/inventory"
)

const gpusPerNode = 8

// model is a kind of GPU. The fleet has as many nodes of each.
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

// largest is the GPU of one node in the worst cases: a pod of largeUnits fits no other.
var largest = model{"NVIDIA B200", 183359, 178, 700}

const largeUnits = 100

// sizes are the requests of pods in turn, in units.
var sizes = []int64{3, 5, 8, 10, 16, 20, 40}

// device is a GPU in the inventory annotation.
type device struct {
	UUID      string `json:"uuid"`
	Index     int    `json:"index"`
	Model     string `json:"model"`
	MemoryMiB int64  `json:"memoryMiB"`
	Units     int64  `json:"units"`
	Speed     int    `json:"speed"`
	Healthy   bool   `json:"healthy"`
}

func uuid(node, k int) string {
	return fmt.Sprintf("GPU-%08x-%04x-4000-8000-000000000000", node, k)
}

func nodeName(i int) string { return fmt.Sprintf("gpu-node-%05d", i) }

// fleetNode returns the i-th node of the fleet.
func fleetNode(i int) *v1.Node { return newNode(nodeName(i), i, models[i%len(models)]) }

// newNode returns a node as the kubelet and the device plugin report it.
func newNode(name string, i int, m model) *v1.Node {
	var gpus []device
	for k := range gpusPerNode {
		gpus = append(gpus, device{uuid(i, k), k, m.name, m.memoryMiB, m.units, m.speed, true})
	}
	value, err := json.Marshal(map[string]any{"v": 1, "unitMiB": 1024, "driverVersion": "580.95.05", "gpus": gpus})
	if err != nil {
		panic(err) // plain values
	}
	allocatable := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("96"), v1.ResourceMemory: resource.MustParse("1Ti"), v1.ResourcePods: resource.MustParse("250"),
		gpuMem: *resource.NewQuantity(gpusPerNode*m.units, resource.DecimalSI),
	}
	return &v1.Node{
		TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(fmt.Sprintf("%08x-0000-4a5c-9d2f-%012x", i, i)),
			Labels: map[string]string{
				v1.LabelHostname: name, v1.LabelArchStable: "amd64", v1.LabelOSStable: "linux", v1.LabelInstanceTypeStable: "gpu.8x",
				v1.LabelTopologyRegion: "region-1", v1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
				"nvidia.com/gpu.product": strings.ReplaceAll(m.name, " ", "-"),
			},
			Annotations: map[string]string{inventory: string(value), "node.alpha.kubernetes.io/ttl": "0"},
		},
		Status: v1.NodeStatus{
			Capacity: allocatable, Allocatable: allocatable,
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}},
		},
	}
}

// fleetPod returns the i-th pod of a batch. Its request is small beside a node's CPU and memory.
func fleetPod(namespace, batch string, i int, units int64) *v1.Pod {
	name := fmt.Sprintf("%s-%06d", batch, i)
	amount := *resource.NewQuantity(units, resource.DecimalSI)
	return &v1.Pod{
		TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1.PodSpec{
			SchedulerName: "gpumem-scheduler", AutomountServiceAccountToken: new(bool), TerminationGracePeriodSeconds: new(int64),
			// No controller removes this taint from new nodes.
			Tolerations: []v1.Toleration{{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists}},
			Containers: []v1.Container{{
				Name: "main", Image: "registry.example.org/model-server:1",
				Resources: v1.ResourceRequirements{
					Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("128Mi"), gpuMem: amount},
					Limits:   v1.ResourceList{gpuMem: amount},
				},
			}},
		},
	}
}
