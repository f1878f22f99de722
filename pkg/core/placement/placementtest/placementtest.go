// Package placementtest builds nodes, requests and pods for tests with short expressions. GPUs are
// named by index: the GPU with index 1 has the UUID GPU-1.
package placementtest

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// OfDevice is an option of Device.
type OfDevice = func(*gpu.Device)

// OfRequest is an option of Ask.
type OfRequest = func(*placement.Request)

// Device returns a healthy A100.
func Device(index int, capacity gpu.Units, change ...OfDevice) gpu.Device {
	d := gpu.Device{
		UUID: UUID(index), Index: index, Model: "NVIDIA A100-SXM4-80GB", Allocatable: capacity,
		MemoryMiB: int64(capacity) * 1024, NUMANode: -1,
	}
	for _, c := range change {
		c(&d)
	}
	return d
}

// UUID returns the UUID of the GPU with an index.
func UUID(index int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%d", index)) }

// Sick makes a device unhealthy.
func Sick(d *gpu.Device) { d.Status = gpu.Unhealthy("XID 79") }

// Cordoned cordons a device.
func Cordoned(d *gpu.Device) { d.Status.Cordoned = true }

// Model sets the model.
func Model(m string) OfDevice { return func(d *gpu.Device) { d.Model = m } }

// NUMA sets the NUMA node.
func NUMA(n int) OfDevice { return func(d *gpu.Device) { d.NUMANode = n } }

// Speed sets the relative speed.
func Speed(n int) OfDevice { return func(d *gpu.Device) { d.Speed = n } }

// Link connects two GPUs by a number of NVLinks.
func Link(a, b, lanes int) gpu.Link { return gpu.Link{A: UUID(a), B: UUID(b), Lanes: lanes} }

// Inventory returns an inventory with units of 1 GiB.
func Inventory(devices ...gpu.Device) gpu.Inventory {
	return gpu.Inventory{UnitMiB: 1024, Devices: devices}
}

// Node returns the node "n".
func Node(inv gpu.Inventory, holdings ...placement.Holding) placement.Node {
	return placement.NewNode("n", inv, holdings)
}

// Machine returns a node with a number of equal GPUs. Parameter milli is its CPU in millicores.
func Machine(name string, milli int64, gpus int, units gpu.Units, holdings ...placement.Holding) placement.Node {
	inv := Inventory()
	inv.CPU = milli
	for i := range gpus {
		inv.Devices = append(inv.Devices, Device(i, units))
	}
	return placement.NewNode(name, inv, holdings)
}

// Ask returns a request of one container.
func Ask(units gpu.Units, change ...OfRequest) placement.Request {
	r := placement.Request{Containers: placement.NewContainers(placement.Container{Name: "main", Kind: placement.App, Units: units})}
	for _, c := range change {
		c(&r)
	}
	return r
}

// Cores sets the cores of each container, in per cent.
func Cores(n int) OfRequest {
	return func(r *placement.Request) {
		r.Containers = r.Containers.Each(func(c *placement.Container) { c.Cores = n })
	}
}

// Count sets the number of GPUs.
func Count(n int) OfRequest { return func(r *placement.Request) { r.Count = n } }

// CPU sets the CPU in millicores.
func CPU(milli int64) OfRequest { return func(r *placement.Request) { r.CPU = milli } }

// Enforced sets the weakest acceptable level.
func Enforced(e gpu.Enforcement) OfRequest { return func(r *placement.Request) { r.Enforcement = e } }

// ExclusiveGroup sets an exclusive group in the namespace of the tests' pods.
func ExclusiveGroup(g string) OfRequest { return ExclusiveGroupOf("ns", g) }

// ExclusiveGroupOf sets an exclusive group in a namespace.
func ExclusiveGroupOf(namespace, g string) OfRequest {
	return func(r *placement.Request) { r.ExclusiveGroup = placement.Group{Namespace: namespace, Name: g} }
}

// Group sets a group in the namespace of the tests' pods.
func Group(g string) OfRequest { return GroupOf("ns", g) }

// GroupOf sets a group in a namespace.
func GroupOf(namespace, g string) OfRequest {
	return func(r *placement.Request) { r.Group = placement.Group{Namespace: namespace, Name: g} }
}

// Models sets the globs for models.
func Models(globs ...string) OfRequest {
	return func(r *placement.Request) { r.Models = placement.NewGlobs(globs...) }
}

// Policy sets the policy.
func Policy(p placement.Policy) OfRequest { return func(r *placement.Request) { r.Policy = p } }

// Prefers sets the preference.
func Prefers(p placement.Preference) OfRequest {
	return func(r *placement.Request) { r.Preference = p }
}

// Priority sets the priority.
func Priority(p int32) OfRequest { return func(r *placement.Request) { r.Priority = p } }

// UUIDs sets the globs for UUIDs.
func UUIDs(globs ...string) OfRequest {
	return func(r *placement.Request) { r.UUIDs = placement.NewGlobs(globs...) }
}

// Hold returns a pod that holds its share on each of the devices.
func Hold(name string, r placement.Request, devices ...int) placement.Holding {
	var a placement.Assignment
	for _, d := range devices {
		a.Shares = append(a.Shares, placement.Share{Device: UUID(d)})
	}
	return placement.Holding{Pod: placement.PodRef{Namespace: "ns", Name: name, UID: name}, Request: r, Assignment: a.WithShares(r)}
}

// Terminating marks a pod as being deleted.
func Terminating(h placement.Holding) placement.Holding {
	h.Terminating = true
	return h
}

// Requested returns the units of all pods of a node.
func Requested(n placement.Node) (sum gpu.Units) {
	for _, d := range n.Devices {
		sum += d.Requested
	}
	for _, h := range n.Unattributed {
		sum += h.Request.Units()
	}
	return sum
}

// World returns a random inventory, random pods on it, and a random request.
func World(random *rand.Rand) (gpu.Inventory, []placement.Holding, placement.Request) {
	inv := Inventory()
	inv.Enforcement = Pick(random, "", gpu.EnforcementMPS)
	inv.MPS = inv.Enforcement != ""
	for i := range random.IntN(5) {
		d := Device(i, gpu.Units(random.IntN(12)), Model(Pick(random, "NVIDIA A100-SXM4-80GB", "Tesla T4")), NUMA(random.IntN(3)-1), Speed(Pick(random, 0, 21, 100)))
		if random.IntN(6) == 0 {
			Sick(&d)
		}
		if random.IntN(2) == 0 && i > 0 {
			inv.Links = append(inv.Links, Link(i, random.IntN(i), 1+random.IntN(4)))
		}
		inv.Devices = append(inv.Devices, d)
	}
	var none placement.Group
	var anything placement.Globs
	request := func() placement.Request {
		r := placement.Request{
			Count: random.IntN(4), Policy: Pick(random, append([]placement.Policy{"", ""}, placement.Policies()...)...),
			Group:          Pick(random, none, none, placement.Group{Namespace: "a", Name: "g"}, placement.Group{Namespace: "b", Name: "g"}),
			ExclusiveGroup: Pick(random, none, none, none, placement.Group{Namespace: "a", Name: "x"}, placement.Group{Namespace: "b", Name: "x"}),

			Models: Pick(random, anything, anything, placement.NewGlobs("A100*"), placement.NewGlobs("!Tesla*")), UUIDs: Pick(random, anything, anything, anything, placement.NewGlobs("!GPU-0")),
			Enforcement: Pick(random, "", "", "", gpu.EnforcementMPS, gpu.EnforcementKernel),
			Preference:  Pick(random, "", "", placement.Fastest, placement.Cheapest),
		}
		var containers []placement.Container
		for range random.IntN(4) {
			containers = append(containers, placement.Container{
				Kind: placement.ContainerKind(random.IntN(3)), Units: gpu.Units(1 + random.IntN(6)), Cores: Pick(random, 0, 0, 30, 60, 130),
			})
		}
		r.Containers = placement.NewContainers(containers...)
		return r
	}
	var holdings []placement.Holding
	for i := range random.IntN(5) {
		var devices []int
		for range random.IntN(3) {
			if d := random.IntN(6); !slices.Contains(devices, d) {
				devices = append(devices, d)
			}
		}
		holdings = append(holdings, Hold(fmt.Sprint("p", i), request(), devices...))
	}
	return inv, holdings, request()
}

// Pick returns a random element.
func Pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }
