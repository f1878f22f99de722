// Package kubetest builds nodes and pods with GPU memory for tests, also in the module test/scheduler.
// Only tests import it.
package kubetest

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Names returns the names of the default domain.
func Names(t testing.TB) api.Names {
	t.Helper()
	names, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// UUID returns the UUID of the i-th GPU of a node.
func UUID(node string, i int) gpu.UUID {
	return gpu.UUID(fmt.Sprintf("GPU-%s-%d", node, i))
}

// Inventory returns an inventory of GPUs with the given sizes in GiB, in units of 1 GiB.
func Inventory(node string, gib ...int) gpu.Inventory {
	inv := gpu.Inventory{UnitMiB: 1024, DriverVersion: "570.86.15", Enforcement: gpu.EnforcementMPS}
	for i, size := range gib {
		inv.Devices = append(inv.Devices, gpu.Device{
			UUID: UUID(node, i), Index: i, Model: "NVIDIA A100", MemoryMiB: int64(size) * 1024,
			Allocatable: gpu.Units(size), NUMANode: -1,
		})
	}
	return inv
}

// Node returns a ready node with the inventory.
func Node(t testing.TB, name string, inv gpu.Inventory) *v1.Node {
	t.Helper()
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}},
		Status: v1.NodeStatus{
			Addresses:  []v1.NodeAddress{{Type: v1.NodeHostName, Address: name}, {Type: v1.NodeInternalIP, Address: "10.0.0.1"}},
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		},
	}
	if len(inv.Devices) > 0 {
		SetInventory(t, node, inv)
		var cordoned []gpu.UUID
		for _, d := range inv.Devices {
			if d.Status.Cordoned {
				cordoned = append(cordoned, d.UUID)
			}
		}
		if len(cordoned) > 0 {
			node.Annotations[Names(t).Cordoned()] = api.FormatCordonedGPUs(cordoned)
		}
		node.Status.Allocatable = v1.ResourceList{Names(t).GPUMem(): *resource.NewQuantity(int64(inv.Allocatable()), resource.DecimalSI)}
	}
	return node
}

// SetInventory writes the inventory annotation of a node.
func SetInventory(t testing.TB, node *v1.Node, inv gpu.Inventory) {
	t.Helper()
	value, err := api.EncodeInventory(inv)
	if err != nil {
		t.Fatal(err)
	}
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, Names(t).Inventory(), value)
}

// Pod returns a pod that requests units and runs on the given GPUs of a node. The name has the form
// namespace/name. Without a node, the pod waits.
func Pod(t testing.TB, name, nodeName string, units int64, on ...gpu.UUID) *v1.Pod {
	t.Helper()
	names := Names(t)
	namespace, short, _ := strings.Cut(name, "/")
	amount := v1.ResourceList{names.GPUMem(): *resource.NewQuantity(units, resource.DecimalSI)}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: short, UID: types.UID("uid-" + name), Annotations: map[string]string{}},
		Spec:       v1.PodSpec{NodeName: nodeName, Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Limits: amount}}}},
		Status:     v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}}},
	}
	if nodeName == "" {
		pod.Status.Phase = v1.PodPending
		pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable}}
	}
	var a placement.Assignment
	there := placement.Node{Name: nodeName, Inventory: gpu.Inventory{Enforcement: gpu.EnforcementKernel}}
	for i, id := range on {
		a.Shares = append(a.Shares, placement.Share{Device: id, Units: gpu.Units(units / int64(len(on)))})
		there.Devices = append(there.Devices, placement.Device{Device: &gpu.Device{UUID: id, Index: i}})
	}
	if len(on) > 1 {
		pod.Annotations[names.Count()] = strconv.Itoa(len(on))
	}
	if len(on) > 0 {
		annotations, err := names.AssignmentAnnotations(a, there)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(pod.Annotations, annotations)
	}
	return pod
}

// With applies a change to an object and returns the object.
func With[T any](object T, change func(T)) T {
	change(object)
	return object
}

// OwnedBy returns a change that adds a controller of the kind to a pod.
func OwnedBy(kind string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "owner", UID: types.UID("uid-" + kind), Controller: new(true)}}
	}
}
