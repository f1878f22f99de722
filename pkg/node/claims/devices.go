package claims

import (
	"cmp"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/resourceslices"
)

// Resources returns the published devices of a node: one pool, with the smallest GPU first.
func Resources(inv gpu.Inventory, domain, node string, cores bool) resourceslice.DriverResources {
	groups := linkGroups(inv)
	var devices []resourceapi.Device
	for _, i := range resourceslices.Order(inv.Devices, func(d gpu.Device) gpu.Device { return d }) {
		d := inv.Devices[i]
		if d.Allocatable <= d.Foreign {
			continue // no capacity left for claims
		}
		devices = append(devices, resourceapi.Device{
			Name: resourceslices.DeviceName(d.UUID), AllowMultipleAllocations: new(true),
			Attributes: attributes(d, inv, groups), Capacity: capacity(d, inv.UnitMiB, cores), Taints: taints(d.Status, domain),
		})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: {Slices: []resourceslice.Slice{{Devices: devices}}}}}
}

// attributes returns the attributes of a GPU, which claims can use in CEL selectors.
func attributes(d gpu.Device, inv gpu.Inventory, groups map[gpu.UUID]int) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	out := make(map[resourceapi.QualifiedName]resourceapi.DeviceAttribute)
	text := func(name resourceapi.QualifiedName, value string) {
		if len(value) > resourceapi.DeviceAttributeMaxValueLength {
			value = value[:resourceapi.DeviceAttributeMaxValueLength]
		}
		if value != "" {
			out[name] = resourceapi.DeviceAttribute{StringValue: &value}
		}
	}
	number := func(name resourceapi.QualifiedName, value int, known bool) {
		if known {
			out[name] = resourceapi.DeviceAttribute{IntValue: new(int64(value))}
		}
	}
	text("uuid", string(d.UUID))
	text("model", d.Model)
	text("driverVersion", inv.DriverVersion) // not a semantic version, because of leading zeros
	text("computeCapability", d.ComputeCapability)
	text("enforcement", string(cmp.Or(inv.LevelFor(1), gpu.EnforcementAdvisory)))
	text(deviceattribute.StandardDeviceAttributePCIBusID, busID(d.PCI))
	number("index", d.Index, true)
	number("speed", d.Speed, d.Speed > 0)
	number("numaNode", d.NUMANode, d.NUMANode >= 0)
	group, linked := groups[d.UUID]
	number("nvlinkGroup", group, linked)
	return out
}

// busID returns a bus address in Kubernetes's format. NVML's format has a PCI domain of eight digits, and the
// first four are zeros.
func busID(pci string) string {
	if short, ok := strings.CutPrefix(pci, "0000"); ok && strings.Count(short, ":") == 2 && strings.Index(short, ":") == 4 {
		return short
	}
	return pci
}

// linkGroups returns the group's number for each GPU that has NVLinks. NVLinks connect the GPUs of a group, directly
// or through other GPUs. The number of a group is the lowest index of its GPUs.
func linkGroups(inv gpu.Inventory) map[gpu.UUID]int {
	groups := make(map[gpu.UUID]int)
	for _, l := range inv.Links {
		for _, id := range []gpu.UUID{l.A, l.B} {
			if d, ok := inv.Device(id); ok {
				groups[id] = d.Index
			}
		}
	}
	for range groups { // a path has fewer links than there are GPUs
		for _, l := range inv.Links {
			a, hasA := groups[l.A]
			b, hasB := groups[l.B]
			if hasA && hasB {
				groups[l.A], groups[l.B] = min(a, b), min(a, b)
			}
		}
	}
	return groups
}

func capacity(d gpu.Device, unitMiB int64, cores bool) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	unit := bytes(unitMiB)
	left := d.Allocatable - d.Foreign
	all := bytes(int64(left) * unitMiB)
	name := resourceapi.QualifiedName(resourceslices.CapacityMemory)
	if d.InShares() {
		name, unit, all = resourceslices.CapacityShares, *count(1), *count(int64(left))
	}
	policy := &resourceapi.CapacityRequestPolicy{Default: &all, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &unit, Max: &all, Step: &unit}}
	if left == 1 {
		policy.ValidRange.Step = nil // the value one step above the minimum must be valid
	}
	out := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{name: {Value: all, RequestPolicy: policy}}
	if cores {
		out[resourceslices.CapacityCores] = resourceapi.DeviceCapacity{Value: *count(gpu.CoresPerDevice), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: count(0), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: count(0), Max: count(gpu.CoresPerDevice), Step: count(1)},
		}}
	}
	return out
}

func bytes(amountMiB int64) resource.Quantity {
	return *resource.NewQuantity(amountMiB*mib, resource.BinarySI)
}

func count(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }

// taints returns the taints that keep new claims off a GPU. They do not affect existing claims.
func taints(s gpu.Status, domain string) (out []resourceapi.DeviceTaint) {
	add := func(is bool, what string) {
		if is {
			out = append(out, resourceapi.DeviceTaint{Key: domain + "/" + what, Effect: resourceapi.DeviceTaintEffectNoSchedule})
		}
	}
	add(s.Unhealthy || s.Stopped, "unhealthy")
	add(s.Cordoned, "cordoned")
	return out
}
