package scheduler

import (
	"maps"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

const (
	namespace = "team"
	unitMiB   = 1024
	model     = "NVIDIA A10"
)

// The builders that tests of the product use too.
var (
	names = kubetest.Names
	uuid  = kubetest.UUID
)

// device is a healthy GPU of 10 units.
func device(node string, index int) gpu.Device {
	return gpu.Device{UUID: uuid(node, index), Index: index, Model: model, MemoryMiB: 10 * unitMiB, Allocatable: 10, NUMANode: -1}
}

// nodeOf returns a node with these GPUs, as its device plugin and kubelet write it.
func nodeOf(t testing.TB, name string, devices ...gpu.Device) *v1.Node {
	t.Helper()
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	setGPUs(t, node, devices...)
	return node
}

// node returns a node of two GPUs of 10 units each.
func node(t testing.TB, name string) *v1.Node {
	t.Helper()
	return nodeOf(t, name, device(name, 0), device(name, 1))
}

// setGPUs has a node offer these GPUs.
func setGPUs(t testing.TB, node *v1.Node, devices ...gpu.Device) {
	t.Helper()
	inv := gpu.Inventory{UnitMiB: unitMiB, Devices: devices}
	if inv.InShares() {
		inv.UnitMiB = 0
	}
	kubetest.SetInventory(t, node, inv)
	var units gpu.Units
	for _, d := range devices {
		if d.Status.TakesPods() {
			units += d.Allocatable
		}
	}
	node.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("64"), v1.ResourcePods: resource.MustParse("100"),
		names(t).GPUMem(): *resource.NewQuantity(int64(units), resource.DecimalSI),
	}
	node.Status.Capacity = node.Status.Allocatable
}

// option changes a pod that is being made.
type option func(*v1.Pod)

// pod returns one that asks for so many units and is on no node.
func pod(t testing.TB, name string, units gpu.Units, options ...option) *v1.Pod {
	t.Helper()
	amount := v1.ResourceList{}
	if units > 0 {
		amount[names(t).GPUMem()] = *resource.NewQuantity(int64(units), resource.DecimalSI)
	}
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.Now()},
		Spec: v1.PodSpec{
			SchedulerName: schedulerName, Priority: new(int32),
			Containers: []v1.Container{{Name: "main", Image: "main", Resources: v1.ResourceRequirements{Requests: amount, Limits: amount}}},
		},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
	for _, o := range options {
		o(p)
	}
	return p
}

// on has a pod run on these GPUs of a node.
func on(t testing.TB, node *v1.Node, indexes ...int) option {
	return func(p *v1.Pod) {
		t.Helper()
		p.Spec.NodeName = node.Name
		p.Status.Phase = v1.PodRunning
		now := metav1.Now()
		p.Status.StartTime = &now
		assign(t, p, node, indexes...)
	}
}

// assign writes onto a pod that it has these GPUs.
func assign(t testing.TB, p *v1.Pod, node *v1.Node, indexes ...int) {
	t.Helper()
	req, err := names(t).Request(p)
	if err != nil {
		t.Fatal(err)
	}
	inv, err := names(t).InventoryOf(node)
	if err != nil {
		t.Fatal(err)
	}
	var a placement.Assignment
	for _, i := range indexes {
		a.Shares = append(a.Shares, placement.Share{Device: uuid(node.Name, i)})
	}
	value, err := names(t).AssignmentAnnotations(a.WithShares(req), placement.NewNode(node.Name, inv, nil))
	if err != nil {
		t.Fatal(err)
	}
	for key, v := range value {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, v)
	}
}

// cpu has a pod ask for so much CPU.
func cpu(amount string) option {
	return func(p *v1.Pod) {
		requests := maps.Clone(p.Spec.Containers[0].Resources.Requests)
		requests[v1.ResourceCPU] = resource.MustParse(amount)
		p.Spec.Containers[0].Resources.Requests = requests
	}
}

// priority sets a pod's priority.
func priority(value int32) option {
	return func(p *v1.Pod) { p.Spec.Priority = &value }
}

// annotated gives a pod an annotation.
func annotated(key, value string) option {
	return func(p *v1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
}

// gracefully has a pod end some time after its deletion.
func gracefully(p *v1.Pod) {
	grace := int64(30)
	p.Spec.TerminationGracePeriodSeconds = &grace
}

// of has a pod placed by a profile of that name.
func of(profile string) option {
	return func(p *v1.Pod) { p.Spec.SchedulerName = profile }
}

// place is where a pod is: its node and the indexes of its GPUs there.
type place struct {
	Node string
	GPUs []int
}

// placeOf returns where a pod is by its node and annotation.
func placeOf(t testing.TB, p *v1.Pod) place {
	t.Helper()
	assignment, err := names(t).AssignmentOf(p)
	if err != nil {
		t.Fatal(err)
	}
	at := place{Node: p.Spec.NodeName}
	for _, d := range assignment.Devices() {
		for i := range 8 {
			if d == uuid(at.Node, i) {
				at.GPUs = append(at.GPUs, i)
			}
		}
	}
	slices.Sort(at.GPUs)
	return at
}
