package claims

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

func TestWhatIsPublished(t *testing.T) {
	inv := gpu.Inventory{
		UnitMiB: 1024, DriverVersion: "580.95.05", Enforcement: gpu.EnforcementMPS, MPS: true,
		Devices: []gpu.Device{
			{UUID: "GPU-A", Index: 0, Model: "NVIDIA A100", Allocatable: 79, NUMANode: 1, PCI: "00000000:3b:00.0", ComputeCapability: "8.0", Speed: 100},
			{UUID: "GPU-b", Index: 1, Allocatable: 1, NUMANode: -1, Status: gpu.Unhealthy("XID 79")},
			{UUID: "GPU-c", Index: 2, Allocatable: 79, NUMANode: -1, Status: gpu.Status{Cordoned: true}},
			{UUID: "GPU-d", Index: 3, Allocatable: 0, NUMANode: -1},
			{UUID: "GPU-e", Index: 4, Allocatable: 90, NUMANode: -1},
		},
		Links: []gpu.Link{{A: "GPU-e", B: "GPU-c"}, {A: "GPU-c", B: "GPU-A"}, {A: "GPU-A", B: "GPU-gone"}},
	}
	pools := Resources(inv, domain, node, true).Pools
	if len(pools) != 1 || len(pools[node].Slices) != 1 {
		t.Fatalf("pools %+v", pools)
	}
	devices := pools[node].Slices[0].Devices
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	if diff := cmp.Diff([]string{"gpu-b", "gpu-a", "gpu-c", "gpu-e"}, names); diff != "" {
		t.Error("smallest first:", diff)
	}
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	number := func(n int64) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{IntValue: &n} }
	gib := func(n int64) resourceapi.DeviceCapacity { return resourceapi.DeviceCapacity{Value: bytes(n * 1024)} }
	whole, unit := bytes(79*1024), bytes(1024)
	memory := gib(79)
	memory.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: &whole, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &unit, Max: &whole, Step: &unit}}
	want := resourceapi.Device{
		Name: "gpu-a", AllowMultipleAllocations: new(true),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"uuid": text("GPU-A"), "model": text("NVIDIA A100"), "driverVersion": text("580.95.05"), "computeCapability": text("8.0"),
			"enforcement": text("mps"), "resource.kubernetes.io/pciBusID": text("0000:3b:00.0"),
			"index": number(0), "speed": number(100), "numaNode": number(1), "nvlinkGroup": number(0),
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": memory,
			"cores": {Value: *count(100), RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: count(0), ValidRange: &resourceapi.CapacityRequestPolicyRange{
				Min: count(0), Max: count(100), Step: count(1),
			}}},
		},
	}
	if diff := cmp.Diff(want, devices[1]); diff != "" {
		t.Error(diff)
	}
	inShares := gpu.Device{UUID: "GPU-f", Allocatable: gpu.SharesPerDevice, ShareMiB: 1000}
	offered := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"shares": {Value: *count(10), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default: count(10), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: count(1), Max: count(10), Step: count(1)},
	}}}
	if diff := cmp.Diff(offered, capacity(inShares, 0, false)); diff != "" {
		t.Error("in shares:", diff)
	}
	inShares.Foreign = 3
	if got := capacity(inShares, 0, false)["shares"]; got.Value.Value() != 7 || got.RequestPolicy.ValidRange.Max.Value() != 7 {
		t.Errorf("with 3 in use by others: %+v", got)
	}
	if got := devices[0].Capacity["memory"].RequestPolicy.ValidRange.Step; got != nil {
		t.Errorf("a GPU of one unit has a step of %s: the API server refuses it", got)
	}
	taintsOf := func(i int) (keys []string) {
		for _, taint := range devices[i].Taints {
			keys = append(keys, taint.Key+":"+string(taint.Effect))
		}
		return keys
	}
	if diff := cmp.Diff([][]string{{"gpumem.dev/unhealthy:NoSchedule"}, nil, {"gpumem.dev/cordoned:NoSchedule"}, nil}, [][]string{taintsOf(0), taintsOf(1), taintsOf(2), taintsOf(3)}); diff != "" {
		t.Error(diff)
	}
	if got := devices[3].Attributes["nvlinkGroup"]; got.IntValue == nil || *got.IntValue != 0 {
		t.Errorf("a GPU that reaches GPU 0 by two links is in group %v", got.IntValue)
	}
	inv.Devices = []gpu.Device{{UUID: "GPU-A", Allocatable: 14, Foreign: 3}, {UUID: "GPU-b", Allocatable: 14, Foreign: 14}, {UUID: "GPU-c", Allocatable: 14, Foreign: 13}}
	devices = Resources(inv, domain, node, false).Pools[node].Slices[0].Devices
	whole = bytes(11 * 1024)
	if got := devices[0].Capacity["memory"]; len(devices) != 2 || got.Value.Cmp(whole) != 0 || got.RequestPolicy.ValidRange.Max.Cmp(whole) != 0 {
		t.Errorf("what others use is published: %+v", devices)
	}
	if devices[1].Name != "gpu-c" || devices[1].Capacity["memory"].RequestPolicy.ValidRange.Step != nil {
		t.Errorf("of a GPU with one unit left: %+v", devices[1])
	}
	inv.Devices = []gpu.Device{{UUID: "GPU-A", Allocatable: 14}, {UUID: "GPU-b", Allocatable: 14}}
	if _, ok := Resources(inv, domain, node, false).Pools[node].Slices[0].Devices[1].Capacity["cores"]; ok {
		t.Error("cores are published that are not offered")
	}
}
