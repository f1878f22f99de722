// Claims need Kubernetes 1.36.

//go:build !kube1.35

package scheduler

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/gpumem/gpumem/cmd/gpumem-scheduler/plugin"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/resourceslices"
)

// What is packed: nodes of eight equal GPUs each, and pods of sizes that come in turn.
var (
	gpuSizes = []int64{79, 79, 22, 14}
	podSizes = []int64{3, 5, 8, 10, 16, 20, 40}
)

const gpusPerNode = 8

// claimNode returns a node that hands out its GPUs by claims, and its slice.
func claimNode(t testing.TB, name string, units int64) (*v1.Node, *resourceapi.ResourceSlice) {
	t.Helper()
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: api.DefaultDomain, NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
	}}
	var devices []gpu.Device
	for i := range gpusPerNode {
		d := device(name, i)
		d.Allocatable, d.MemoryMiB, d.Status.ByClaims = gpu.Units(units), units*unitMiB, true
		devices = append(devices, d)
		least, most := *resource.NewQuantity(1<<30, resource.BinarySI), *resource.NewQuantity(units<<30, resource.BinarySI)
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name: resourceslices.DeviceName(d.UUID), AllowMultipleAllocations: new(true),
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{resourceslices.CapacityMemory: {Value: most, RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: &most, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &least, Max: &most, Step: &least},
			}}},
		})
	}
	return nodeOf(t, name, devices...), slice
}

// claimed returns a pod with a claim of so many GiB of one GPU.
func claimed(t testing.TB, name string, gib int64) (*v1.Pod, *resourceapi.ResourceClaim) {
	t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: api.DefaultDomain, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{resourceslices.CapacityMemory: *resource.NewQuantity(gib<<30, resource.BinarySI)}},
		}}},
	}}}
	p := pod(t, name, 0)
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
	return p, claim
}

// class is the class of our driver's devices.
func class() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultDomain}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", api.DefaultDomain)}}},
	}}
}

// unranked has kube-scheduler's own plugins choose a node alone.
func unranked(c *cluster) {
	for i := range c.cfg.Profiles {
		score := &c.cfg.Profiles[i].Plugins.Score
		score.Disabled = append(score.Disabled, config.Plugin{Name: plugin.Name})
	}
	c.unchecked = true
}

// packed has pods placed one after the other, and returns how many of the largest GPUs stay whole.
func packed(t *testing.T, byClaims bool, nodes, pods int, setups ...setup) (whole int) {
	t.Helper()
	var objects []runtime.Object
	for i := range nodes {
		name, units := fmt.Sprintf("node%03d", i), gpuSizes[i%len(gpuSizes)]
		n, slice := claimNode(t, name, units)
		if byClaims {
			objects = append(objects, n, slice)
			continue
		}
		var devices []gpu.Device
		for j := range gpusPerNode {
			d := device(name, j)
			d.Allocatable, d.MemoryMiB = gpu.Units(units), units*unitMiB
			devices = append(devices, d)
		}
		objects = append(objects, nodeOf(t, name, devices...))
	}
	c := start(t, append(objects, class()), append([]setup{inProcess, uncounted, allNodes}, setups...)...)
	begin := time.Now()
	for i := range pods {
		name, size := fmt.Sprintf("pod%04d", i), podSizes[i%len(podSizes)]
		p, claim := claimed(t, name, size)
		if byClaims {
			c.add(t, claim, p)
		} else {
			c.add(t, pod(t, name, gpu.Units(size)))
		}
		if !holds(t, *patience, func() bool { return c.pod(t, name).Spec.NodeName != "" }) {
			t.Fatalf("%s is not bound: %+v", name, c.pod(t, name).Status.Conditions)
		}
	}
	t.Logf("%d pods in %v", pods, time.Since(begin).Round(time.Millisecond))
	used := make(map[gpu.UUID]bool)
	if byClaims {
		list, err := c.ResourceV1().ResourceClaims(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, claim := range list.Items {
			for _, result := range claim.Status.Allocation.Devices.Results {
				used[gpu.UUID(result.Device)] = true
			}
		}
	} else {
		for _, n := range c.cache.Nodes() {
			for _, d := range n.Devices {
				used[gpu.UUID(resourceslices.DeviceName(d.UUID))] = d.Requested > 0
			}
		}
	}
	for i := range nodes {
		for j := range gpusPerNode {
			if gpuSizes[i%len(gpuSizes)] == 79 && !used[gpu.UUID(resourceslices.DeviceName(uuid(fmt.Sprintf("node%03d", i), j)))] {
				whole++
			}
		}
	}
	return whole
}

// given is a claim to so many GiB of a GPU of a node, which some pod has already.
func given(t testing.TB, name, node string, index int, gib int64) *resourceapi.ResourceClaim {
	t.Helper()
	_, claim := claimed(t, name, gib)
	claim.UID = types.UID("uid-of-" + name)
	claim.Status = resourceapi.ResourceClaimStatus{
		ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID("uid-of-pod-" + name)}},
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: api.DefaultDomain, Pool: node, Device: resourceslices.DeviceName(uuid(node, index)), ShareID: new(types.UID("share-of-" + name)),
			ConsumedCapacity: claim.Spec.Devices.Requests[0].Exactly.Capacity.Requests,
		}}}},
	}
	return claim
}

// A node is ranked by the GPU that a claim is given there, the first that fits, and not by the one that
// would be best. Here the best is one of 5 GiB left for a claim of 5, and the node of that GPU would give
// another, which is whole.
func TestANodeIsRankedByTheGPUThatClaimsGet(t *testing.T) {
	first, its := claimNode(t, "first", 14)
	other, others := claimNode(t, "other", 14)
	p, claim := claimed(t, "pod", 5)
	c := start(t, []runtime.Object{
		first, its, other, others, class(),
		given(t, "a", "first", 1, 9), given(t, "b", "other", 0, 8),
	}, inProcess, uncounted, allNodes)
	c.add(t, claim, p)
	if !holds(t, *patience, func() bool { return c.pod(t, "pod").Spec.NodeName != "" }) {
		t.Fatalf("it is not bound: %+v", c.pod(t, "pod").Status.Conditions)
	}
	if got := c.pod(t, "pod").Spec.NodeName; got != "other" {
		t.Errorf("the pod is on node %s", got)
	}
}

// inShares has a node offer shares to claims, and claims ask for as many as they ask GiB.
func inShares(t testing.TB, name string, slice *resourceapi.ResourceSlice, claims ...*resourceapi.ResourceClaim) *v1.Node {
	t.Helper()
	shares := func(of map[resourceapi.QualifiedName]resource.Quantity) map[resourceapi.QualifiedName]resource.Quantity {
		memory := of[resourceslices.CapacityMemory]
		return map[resourceapi.QualifiedName]resource.Quantity{resourceslices.CapacityShares: *resource.NewQuantity(memory.Value()>>30, resource.DecimalSI)}
	}
	for _, claim := range claims {
		asked := claim.Spec.Devices.Requests[0].Exactly.Capacity
		asked.Requests = shares(asked.Requests)
		if claim.Status.Allocation != nil {
			claim.Status.Allocation.Devices.Results[0].ConsumedCapacity = asked.Requests
		}
	}
	var devices []gpu.Device
	for i := range slice.Spec.Devices {
		d := device(name, i)
		d.Allocatable, d.ShareMiB, d.MemoryMiB, d.Status.ByClaims = gpu.SharesPerDevice, unitMiB, 2*gpu.SharesPerDevice*unitMiB, true
		devices = append(devices, d)
		least, most := resource.MustParse("1"), resource.MustParse("10")
		slice.Spec.Devices[i].Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{resourceslices.CapacityShares: {Value: most, RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: &most, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &least, Max: &most, Step: &least},
		}}}
	}
	return nodeOf(t, name, devices...)
}

// The same of nodes that offer shares, next to one that offers memory.
func TestANodeIsRankedByTheSharesThatClaimsGet(t *testing.T) {
	_, its := claimNode(t, "first", 10)
	_, others := claimNode(t, "other", 10)
	gib, ofGiB := claimNode(t, "gib", 10)
	p, claim := claimed(t, "pod", 5)
	a, b, c := given(t, "a", "first", 1, 5), given(t, "b", "other", 0, 5), given(t, "c", "gib", 0, 5)
	cl := start(t, []runtime.Object{
		inShares(t, "first", its, a, claim), its, inShares(t, "other", others, b), others, gib, ofGiB, class(), a, b, c,
	}, inProcess, uncounted, allNodes)
	cl.add(t, claim, p)
	if !holds(t, *patience, func() bool { return cl.pod(t, "pod").Spec.NodeName != "" }) {
		t.Fatalf("it is not bound: %+v", cl.pod(t, "pod").Status.Conditions)
	}
	if got := cl.pod(t, "pod").Spec.NodeName; got != "other" {
		t.Errorf("the pod is on node %s", got)
	}
}

// Pods with claims leave as many large GPUs whole as those with the extended resource, and more than
// without a ranking of nodes.
func TestClaimsArePacked(t *testing.T) {
	const nodes, pods = 20, 200
	want := packed(t, false, nodes, pods)
	got := packed(t, true, nodes, pods)
	without := packed(t, true, nodes, pods, unranked)
	t.Logf("whole GPUs of 79 GiB: %d by the extended resource, %d by claims, %d by claims without a ranking", want, got, without)
	if got*100 < want*97 || got <= without {
		t.Errorf("claims leave %d GPUs of 79 GiB whole, the extended resource %d, and claims without a ranking %d", got, want, without)
	}
}

// kube-scheduler allocates a GPU that NVIDIA's driver publishes to a claim, and gpumem allocates the same GPU to a pod. So
// package coexist withdraws such a GPU, and then the pod waits.
func TestAGPUThatTwoDriversPublishIsAllocatedTwice(t *testing.T) {
	const nvidia = "gpu.nvidia.com"
	for name, tc := range map[string]struct {
		status gpu.Status
		twice  bool
	}{
		"offered":   {twice: true},
		"withdrawn": {status: gpu.Unhealthy("published by driver " + nvidia)},
	} {
		t.Run(name, func(t *testing.T) {
			d := device("node", 0)
			d.Status = tc.status
			uuid, node := string(d.UUID), "node"
			slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: nvidia}, Spec: resourceapi.ResourceSliceSpec{
				Driver: nvidia, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
				Devices: []resourceapi.Device{{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": {StringValue: &uuid}}}},
			}}
			p, claim := claimed(t, "by-claim", 1)
			claim.Spec.Devices.Requests[0].Exactly.DeviceClassName, claim.Spec.Devices.Requests[0].Exactly.Capacity = nvidia, nil
			theirs := class()
			theirs.Name, theirs.Spec.Selectors[0].CEL.Expression = nvidia, fmt.Sprintf("device.driver == %q", nvidia)
			c := start(t, []runtime.Object{nodeOf(t, node, d), slice, theirs, claim, p}, inProcess, uncounted, allNodes)
			if !holds(t, *patience, func() bool { return c.pod(t, "by-claim").Spec.NodeName != "" }) {
				t.Fatalf("the pod with the claim is not bound: %+v", c.pod(t, "by-claim").Status.Conditions)
			}
			c.add(t, pod(t, "by-memory", 3))
			if !tc.twice {
				c.waits(t, "by-memory")
			} else if at := c.bound(t, "by-memory", 0); len(at.GPUs) != 1 || at.GPUs[0] != 0 {
				t.Errorf("the pod with gpu-mem is at %v, want the GPU of the claim", at)
			}
		})
	}
}
