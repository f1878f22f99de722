// Package placementtest makes the nodes, requests and pods of tests, in as few
// words as a table can bear. GPUs go by their index: that of index 1 has the UUID
// GPU-1.
package placementtest

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// OfDevice changes what Device returns.
type OfDevice = func(*gpu.Device)

// OfRequest changes what Ask returns.
type OfRequest = func(*placement.Request)

// Device returns a healthy GPU of an A100's model.
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

// UUID returns that of a GPU.
func UUID(index int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%d", index)) }

// Sick is said of a Device that is not healthy.
func Sick(d *gpu.Device) { d.Status = gpu.Unhealthy("XID 79") }

// Cordoned is said of a Device that people keep new pods off.
func Cordoned(d *gpu.Device) { d.Status.Cordoned = true }

// Model is said of a Device.
func Model(m string) OfDevice { return func(d *gpu.Device) { d.Model = m } }

// NUMA is said of a Device: its node.
func NUMA(n int) OfDevice { return func(d *gpu.Device) { d.NUMANode = n } }

// Speed is said of a Device.
func Speed(n int) OfDevice { return func(d *gpu.Device) { d.Speed = n } }

// Link joins two GPUs by so many NVLinks.
func Link(a, b, lanes int) gpu.Link { return gpu.Link{A: UUID(a), B: UUID(b), Lanes: lanes} }

// Inventory returns one in units of 1 GiB.
func Inventory(devices ...gpu.Device) gpu.Inventory {
	return gpu.Inventory{UnitMiB: 1024, Devices: devices}
}

// Node returns the node "n".
func Node(inv gpu.Inventory, holdings ...placement.Holding) placement.Node {
	return placement.NewNode("n", inv, holdings)
}

// Machine returns a node with CPU and some equal GPUs.
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

// Cores are said of a request: per cent, of its container.
func Cores(n int) OfRequest {
	return func(r *placement.Request) {
		r.Containers = r.Containers.Each(func(c *placement.Container) { c.Cores = n })
	}
}

// Count is said of a request: of GPUs.
func Count(n int) OfRequest { return func(r *placement.Request) { r.Count = n } }

// CPU is said of a request: in millicores.
func CPU(milli int64) OfRequest { return func(r *placement.Request) { r.CPU = milli } }

// Enforced is said of a request: the weakest level to accept.
func Enforced(e gpu.Enforcement) OfRequest { return func(r *placement.Request) { r.Enforcement = e } }

// ExclusiveGroup is said of a request: one of a namespace like any other.
func ExclusiveGroup(g string) OfRequest { return ExclusiveGroupOf("ns", g) }

// ExclusiveGroupOf is ExclusiveGroup of a namespace.
func ExclusiveGroupOf(namespace, g string) OfRequest {
	return func(r *placement.Request) { r.ExclusiveGroup = placement.Group{Namespace: namespace, Name: g} }
}

// Group is said of a request: one of a namespace like any other.
func Group(g string) OfRequest { return GroupOf("ns", g) }

// GroupOf is Group of a namespace.
func GroupOf(namespace, g string) OfRequest {
	return func(r *placement.Request) { r.Group = placement.Group{Namespace: namespace, Name: g} }
}

// Models are said of a request: globs.
func Models(globs ...string) OfRequest {
	return func(r *placement.Request) { r.Models = placement.NewGlobs(globs...) }
}

// Policy is said of a request.
func Policy(p placement.Policy) OfRequest { return func(r *placement.Request) { r.Policy = p } }

// Prefers is said of a request: its preference.
func Prefers(p placement.Preference) OfRequest {
	return func(r *placement.Request) { r.Preference = p }
}

// Priority is said of a request.
func Priority(p int32) OfRequest { return func(r *placement.Request) { r.Priority = p } }

// UUIDs are said of a request: globs.
func UUIDs(globs ...string) OfRequest {
	return func(r *placement.Request) { r.UUIDs = placement.NewGlobs(globs...) }
}

// Hold returns a pod that holds its share of each of the devices.
func Hold(name string, r placement.Request, devices ...int) placement.Holding {
	var a placement.Assignment
	for _, d := range devices {
		a.Shares = append(a.Shares, placement.Share{Device: UUID(d)})
	}
	return placement.Holding{Pod: placement.PodRef{Namespace: "ns", Name: name, UID: name}, Request: r, Assignment: a.WithShares(r)}
}

// Terminating returns a pod that is being deleted.
func Terminating(h placement.Holding) placement.Holding {
	h.Terminating = true
	return h
}

// Requested returns the units that pods of a node have together, each once.
func Requested(n placement.Node) (sum gpu.Units) {
	for _, d := range n.Devices {
		sum += d.Requested
	}
	for _, h := range n.Unattributed {
		sum += h.Request.Units()
	}
	return sum
}

// World returns the parts of any node, and any request.
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

// Pick returns one of several.
func Pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }
