package placement_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// Short names for the tables.
var (
	device, uuid, sick, model, numa, speed, link    = placementtest.Device, placementtest.UUID, placementtest.Sick, placementtest.Model, placementtest.NUMA, placementtest.Speed, placementtest.Link
	inventory, node, hold, cordoned                 = placementtest.Inventory, placementtest.Node, placementtest.Hold, placementtest.Cordoned
	ask, cores, count, policy, prefers              = placementtest.Ask, placementtest.Cores, placementtest.Count, placementtest.Policy, placementtest.Prefers
	globsOf, uuids, group, exclusiveGroup, enforced = placementtest.Models, placementtest.UUIDs, placementtest.Group, placementtest.ExclusiveGroup, placementtest.Enforced
	groupOf, exclusiveGroupOf                       = placementtest.GroupOf, placementtest.ExclusiveGroupOf
)

func migDevice(index int, units gpu.Units) gpu.Device {
	d := device(index, units)
	d.UUID = gpu.UUID(strings.Replace(string(d.UUID), "GPU-", "MIG-", 1))
	return d
}

func TestFit(t *testing.T) {
	two := inventory(device(0, 10), device(1, 10))
	tests := map[string]struct {
		req          placement.Request
		node         placement.Node
		want         placement.Reason
		wantSentence string
		unresolvable bool
	}{
		"an empty GPU that is just large enough": {
			req: ask(10), node: node(two), want: placement.Fits,
			wantSentence: "needs 10 GiB on one GPU; fits",
		},
		"no device plugin has reported": {
			req: ask(1), node: placement.Node{Name: "n"}, want: placement.NoDevices, unresolvable: true,
			wantSentence: "the node offers no GPU memory: its device plugin has found no GPU, or has not reported yet",
		},
		"a MIG instance, for one GPU": {
			req: ask(2), node: node(inventory(migDevice(0, 4))), want: placement.Fits,
			wantSentence: "needs 2 GiB on one GPU; fits",
		},
		"MIG instances alone, for several GPUs": {
			req: ask(2, count(2)), node: node(inventory(migDevice(0, 4), migDevice(1, 4))), want: placement.NoSuchDevice, unresolvable: true,
			wantSentence: "needs 2 GPUs; the matching GPUs here are MIG instances, and a program can use only one: ask for one GPU",
		},
		"a MIG instance next to a GPU, for several GPUs": {
			req: ask(2, count(2)), node: node(inventory(migDevice(0, 4), device(1, 10))), want: placement.TooFew, unresolvable: true,
			wantSentence: "needs 1 GiB on each of 2 GPUs; large enough here: 1: ask for fewer GPUs, or for less on each",
		},
		"the node enforces less than is demanded": {
			req: ask(1, enforced(gpu.EnforcementKernel)), node: node(two), want: placement.WeakerEnforcement, unresolvable: true,
			wantSentence: "wants enforcement kernel; this node has advisory: ask for that, or for none",
		},
		"MPS, and several GPUs": {
			req:  ask(2, enforced(gpu.EnforcementMPS), count(2)),
			node: node(gpu.Inventory{UnitMiB: 1024, Enforcement: gpu.EnforcementMPS, MPS: true, Weaker: "kernel: none", Devices: two.Devices}),
			want: placement.WeakerEnforcement, unresolvable: true,
			wantSentence: "wants enforcement mps; this node has advisory (mps: MPS limits a pod of one GPU only; kernel: none): ask for that, or for none",
		},
		"the node enforces more than is demanded": {
			req:  ask(1, enforced(gpu.EnforcementMPS)),
			node: node(gpu.Inventory{UnitMiB: 1024, Enforcement: gpu.EnforcementKernel, Devices: two.Devices}), want: placement.Fits,
			wantSentence: "needs 1 GiB on one GPU; fits",
		},
		"no GPU of the model": {
			req: ask(1, globsOf("H100*", "!*PCIe")), node: node(inventory(device(0, 10), device(1, 10), device(2, 15, model("Tesla T4")))), want: placement.NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches H100*,!*PCIe; this node has NVIDIA A100-SXM4-80GB, Tesla T4: change gpu-model",
		},
		"no GPU of the model, which a star before the glob would match": {
			req: ask(1, globsOf("H100*", "RTX*", "!*PCIe")), node: node(inventory(device(0, 15, model("NVIDIA GeForce RTX 4090")))), want: placement.NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches H100*,RTX*,!*PCIe; this node has NVIDIA GeForce RTX 4090: change gpu-model (globs match the whole name: *RTX*)",
		},
		"no GPU of the model, which a star on either side would match": {
			req: ask(1, globsOf("A100")), node: node(inventory(device(0, 15))), want: placement.NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches A100; this node has NVIDIA A100-SXM4-80GB: change gpu-model (globs match the whole name: *A100*)",
		},
		"no GPU of the model, which is misspelt": {
			req: ask(1, globsOf("Telsa-T4", "!*PCIe")), node: node(inventory(device(0, 15, model("Tesla T4")))), want: placement.NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches Telsa-T4,!*PCIe; this node has Tesla T4: change gpu-model (did you mean *Tesla-T4*?)",
		},
		"no GPU of the model, of which a part is misspelt": {
			req: ask(1, globsOf("a100-smx4*")), node: node(inventory(device(0, 15))), want: placement.NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches a100-smx4*; this node has NVIDIA A100-SXM4-80GB: change gpu-model (did you mean *A100-SXM4*?)",
		},
		"no GPU of the model, which has another number": {
			req: ask(1, globsOf("A100")), node: node(inventory(device(0, 15, model("NVIDIA A10")))), want: placement.NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches A100; this node has NVIDIA A10: change gpu-model",
		},
		"no GPU of the UUID, which a star on either side would match": {
			req: ask(1, uuids("GPU-4cc8")), node: node(inventory(named(device(0, 15), "GPU-4cc89e34"))), want: placement.NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches GPU-4cc8; this node has GPU-4cc89e34: change gpu-uuid (globs match the whole name: *GPU-4cc8*)",
		},
		"no GPU of the UUID, which is an index": {
			req: ask(1, uuids("0")), node: node(inventory(named(device(0, 15), "GPU-4c089e34"))), want: placement.NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches 0; this node has GPU-4c089e34: change gpu-uuid (gpu-uuid takes no index: GPU0 is GPU-4c089e34)",
		},
		"no GPU of the UUID, of which little is said": {
			req: ask(1, uuids("4c")), node: node(inventory(named(device(0, 15), "GPU-4c089e34"))), want: placement.NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches 4c; this node has GPU-4c089e34: change gpu-uuid",
		},
		"less than is not allocated": {
			req: ask(8), node: node(inventory(used(device(0, 10), 4))), want: placement.Insufficient,
			wantSentence: "needs 8 GiB on one GPU; free: GPU0 6 (6 GiB in all); used by programs without a grant: GPU0 4 GiB",
		},
		"cores, of which the node offers none": {
			req: ask(1, cores(10)), node: node(gpu.Inventory{UnitMiB: 1024, Coreless: true, Devices: two.Devices}), want: placement.NoCores, unresolvable: true,
			wantSentence: "asks for cores of a GPU, and the node offers none: they are off (chart value cores)",
		},
		"memory, where the node offers no cores": {
			req: ask(1), node: node(gpu.Inventory{UnitMiB: 1024, Coreless: true, Devices: two.Devices}), want: placement.Fits,
			wantSentence: "needs 1 GiB on one GPU; fits",
		},
		"a star before the glob would not do, or is not needed": {
			req: ask(1, globsOf("L4"), uuids("GPU-7")), node: node(inventory(device(0, 10, model("NVIDIA L40S")), device(1, 10, model("NVIDIA L4")))), want: placement.NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches L4,GPU-7; this node has NVIDIA L40S, NVIDIA L4: change gpu-model or gpu-uuid",
		},
		"no GPU of the UUID": {
			req: ask(1, uuids("GPU-7")), node: node(inventory(device(0, 10, model("")))), want: placement.NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches GPU-7; this node has GPU-0: change gpu-uuid",
		},
		"larger than any GPU, though not than all together": {
			req: ask(11), node: node(two), want: placement.TooLarge, unresolvable: true,
			wantSentence: "needs 11 GiB on one GPU; the largest that qualifies here has 10 GiB: ask for less, or for more GPUs",
		},
		"larger than all GPUs together": {
			req: ask(21), node: node(two), want: placement.TooLarge, unresolvable: true,
			wantSentence: "needs 21 GiB on one GPU; the largest that qualifies here has 10 GiB: ask for less",
		},
		"as large as all GPUs together, one of which is small": {
			req: ask(18), node: node(inventory(device(0, 10), device(1, 8))), want: placement.TooLarge, unresolvable: true,
			wantSentence: "needs 18 GiB on one GPU; the largest that qualifies here has 10 GiB: ask for less",
		},
		"larger than any GPU, and not than three of them": {
			req: ask(30), node: node(inventory(device(0, 10), device(1, 10), device(2, 10), device(3, 2))), want: placement.TooLarge, unresolvable: true,
			wantSentence: "needs 30 GiB on one GPU; the largest that qualifies here has 10 GiB: ask for less, or for more GPUs",
		},
		"an amount in bytes": {
			req: ask(3 << 30), node: node(two), want: placement.TooLarge, unresolvable: true,
			wantSentence: "needs 3221225472 GiB on one GPU; the largest that qualifies here has 10 GiB: gpu-mem counts units of 1 GiB, not bytes: ask for 3",
		},
		"an amount in MiB": {
			req: ask(3072), node: node(two), want: placement.TooLarge, unresolvable: true,
			wantSentence: "needs 3072 GiB on one GPU; the largest that qualifies here has 10 GiB: gpu-mem counts units of 1 GiB: ask for 3 if you meant MiB",
		},
		"larger than any GPU that the model allows": {
			req: ask(12, globsOf("A100*")), node: node(inventory(device(0, 10), device(1, 16, model("Tesla T4")))), want: placement.TooLarge, unresolvable: true,
			wantSentence: "needs 12 GiB on one GPU that matches A100*; the largest that qualifies here has 10 GiB: ask for less",
		},
		"more cores than a GPU has": {
			req: ask(1, cores(150)), node: node(two), want: placement.TooLarge, unresolvable: true,
			wantSentence: "needs 1 GiB and 150 per cent of cores on one GPU; the largest that qualifies here has 10 GiB and 100 per cent of cores: ask for less, or for more GPUs",
		},
		"all cores of a GPU": {
			req: ask(1, cores(100)), node: node(two), want: placement.Fits,
			wantSentence: "needs 1 GiB and 100 per cent of cores on one GPU; fits",
		},
		"more cores than a GPU has, over two GPUs": {
			req: ask(2, cores(150), count(2)), node: node(two), want: placement.Fits,
			wantSentence: "needs 1 GiB and 75 per cent of cores on each of 2 GPUs; fits",
		},
		"fewer large GPUs than wanted": {
			req: ask(30, count(3)), node: node(inventory(device(0, 10), device(1, 9), device(2, 10))), want: placement.TooFew, unresolvable: true,
			wantSentence: "needs 10 GiB on each of 3 GPUs; large enough here: 2: ask for fewer GPUs, or for less on each",
		},
		"fewer GPUs than wanted": {
			req: ask(4, count(4)), node: node(two), want: placement.TooFew, unresolvable: true,
			wantSentence: "needs 1 GiB on each of 4 GPUs; large enough here: 2: ask for fewer GPUs, or for less on each",
		},
		"the only GPU is not healthy": {
			req: ask(3), node: node(inventory(device(0, 10, sick), device(1, 2))), want: placement.Unhealthy,
			wantSentence: "needs 3 GiB on one GPU; free: GPU0 unhealthy (XID 79), GPU1 2",
		},
		"too few of several are healthy, for no reason given": {
			req: ask(4, count(2)), node: node(inventory(device(0, 10), device(1, 10, func(d *gpu.Device) { d.Status.Unhealthy = true }))), want: placement.Unhealthy,
			wantSentence: "needs 2 GiB on each of 2 GPUs; free: GPU0 10, GPU1 unhealthy (no reason given)",
		},
		"an exclusive pod finds every GPU in use": {
			req: ask(1, policy(placement.Exclusive)), node: node(two, hold("a", ask(1), 0), hold("b", ask(1), 1)), want: placement.Occupied,
			wantSentence: "needs 1 GiB on one GPU alone; free: GPU0 occupied, GPU1 occupied",
		},
		"every GPU has an exclusive pod": {
			req: ask(1), node: node(two, hold("a", ask(1, policy(placement.Exclusive)), 0), hold("b", ask(1, policy(placement.Exclusive)), 1)), want: placement.Occupied,
			wantSentence: "needs 1 GiB on one GPU; free: GPU0 occupied, GPU1 occupied",
		},
		"an exclusive pod beside another's GPU": {
			req: ask(1, policy(placement.Exclusive)), node: node(two, hold("a", ask(1, policy(placement.Exclusive)), 0)), want: placement.Fits,
			wantSentence: "needs 1 GiB on one GPU alone; fits",
		},
		"an exclusive group is on every GPU": {
			req: ask(1, exclusiveGroup("x")), node: node(two, hold("a", ask(1, exclusiveGroup("x")), 0), hold("b", ask(1, exclusiveGroup("x")), 1)), want: placement.Occupied,
			wantSentence: `needs 1 GiB on one GPU apart from exclusive-group "x"; free: GPU0 occupied, GPU1 occupied`,
		},
		"another exclusive group does not matter": {
			req: ask(1, exclusiveGroup("x")), node: node(inventory(device(0, 10)), hold("a", ask(1, exclusiveGroup("y")), 0)), want: placement.Fits,
			wantSentence: `needs 1 GiB on one GPU apart from exclusive-group "x"; fits`,
		},
		"nor does one of the same name in another namespace": {
			req: ask(1, exclusiveGroupOf("mine", "x")), node: node(inventory(device(0, 10)), hold("a", ask(1, exclusiveGroupOf("theirs", "x")), 0)), want: placement.Fits,
			wantSentence: `needs 1 GiB on one GPU apart from exclusive-group "x"; fits`,
		},
		"two pods without an exclusive group are not of one": {
			req: ask(1), node: node(inventory(device(0, 10)), hold("a", ask(1), 0)), want: placement.Fits,
			wantSentence: "needs 1 GiB on one GPU; fits",
		},
		"enough in all, on no GPU alone": {
			req: ask(10), node: node(two, hold("a", ask(4), 0), hold("b", ask(6), 1)), want: placement.Fragmented,
			wantSentence: "needs 10 GiB on one GPU; free: GPU0 6, GPU1 4 (10 in all, fragmented)",
		},
		"not enough in all": {
			req: ask(10), node: node(two, hold("a", ask(5), 0), hold("b", ask(6), 1)), want: placement.Insufficient,
			wantSentence: "needs 10 GiB on one GPU; free: GPU0 5, GPU1 4 (9 GiB in all)",
		},
		"what is free on GPUs of another model is no help": {
			req: ask(10, globsOf("A100*")), node: node(inventory(device(0, 10), device(1, 16, model("Tesla T4"))), hold("a", ask(4), 0)), want: placement.Insufficient,
			wantSentence: "needs 10 GiB on one GPU that matches A100*; free: GPU0 6 (6 GiB in all)",
		},
		"what is free on a cordoned GPU is no help": {
			req: ask(3), node: node(inventory(device(0, 10, cordoned), device(1, 2))), want: placement.Unhealthy,
			wantSentence: "needs 3 GiB on one GPU; free: GPU0 cordoned, GPU1 2",
		},
		"what is free on an unhealthy GPU is no help": {
			req: ask(10), node: node(inventory(device(0, 10), device(1, 10, sick)), hold("a", ask(4), 0)), want: placement.Insufficient,
			wantSentence: "needs 10 GiB on one GPU; free: GPU0 6, GPU1 unhealthy (XID 79) (6 GiB in all)",
		},
		"what is free beside an exclusive pod is no help": {
			req: ask(10), node: node(two, hold("a", ask(4), 0), hold("b", ask(1, policy(placement.Exclusive)), 1)), want: placement.Insufficient,
			wantSentence: "needs 10 GiB on one GPU; free: GPU0 6, GPU1 occupied (6 GiB in all)",
		},
		"what is free on a smaller GPU is fragmentation": {
			req: ask(10), node: node(inventory(device(0, 10), device(1, 6)), hold("a", ask(5), 0)), want: placement.Fragmented,
			wantSentence: "needs 10 GiB on one GPU; free: GPU0 5, GPU1 6 (11 in all, fragmented)",
		},
		"two GPUs are wanted and one has room": {
			req: ask(16, count(2)), node: node(two, hold("a", ask(4), 0)), want: placement.Fragmented,
			wantSentence: "needs 8 GiB on each of 2 GPUs; free: GPU0 6, GPU1 10 (16 in all, fragmented)",
		},
		"two jobs of 60 per cent on one GPU": {
			req: ask(1, cores(60)), node: node(inventory(device(0, 10)), hold("a", ask(1, cores(60)), 0)), want: placement.Insufficient,
			wantSentence: "needs 1 GiB and 60 per cent of cores on one GPU; free: GPU0 9 and 40 per cent of cores (9 GiB and 40 per cent of cores in all)",
		},
		"memory is free on one GPU and cores on the other": {
			req: ask(5, cores(60)), node: node(two, hold("a", ask(8), 0), hold("b", ask(1, cores(60)), 1)), want: placement.Fragmented,
			wantSentence: "needs 5 GiB and 60 per cent of cores on one GPU; free: GPU0 2 and 100 per cent of cores, GPU1 9 and 40 per cent of cores (11 and 140 per cent of cores in all, fragmented)",
		},
		"a third job of 60 per cent, for which the node's sum has room": {
			req: ask(1, cores(60)), node: node(two, hold("a", ask(1, cores(60)), 0), hold("b", ask(1, cores(60)), 1)), want: placement.Fragmented,
			wantSentence: "needs 1 GiB and 60 per cent of cores on one GPU; free: GPU0 9 and 40 per cent of cores, GPU1 9 and 40 per cent of cores (18 and 80 per cent of cores in all, fragmented)",
		},
		"a job of 60 per cent beside one of 40": {
			req: ask(1, cores(60)), node: node(inventory(device(0, 10)), hold("a", ask(1, cores(40)), 0)), want: placement.Fits,
			wantSentence: "needs 1 GiB and 60 per cent of cores on one GPU; fits",
		},
		"a GPU that shrank below what it has given has nothing": {
			req: ask(1), node: node(inventory(device(0, 4)), hold("a", ask(10), 0)), want: placement.Insufficient,
			wantSentence: "needs 1 GiB on one GPU; free: GPU0 0 (0 GiB in all)",
		},
		"a GPU that shrank takes nothing from the others": {
			req: ask(10), node: node(inventory(device(0, 4), device(1, 10)), hold("a", ask(10), 0)), want: placement.Fits,
			wantSentence: "needs 10 GiB on one GPU; fits",
		},
		"a pod of unknown GPU counts on each": {
			req: ask(5), node: node(two, hold("a", ask(6))), want: placement.Fragmented,
			wantSentence: "needs 5 GiB on one GPU; free: GPU0 4, GPU1 4 (8 in all, fragmented); pods whose GPU is not known yet, counted on each: 1",
		},
		"a pod of a GPU that is gone counts on each": {
			req: ask(5), node: node(two, hold("a", ask(6), 7)), want: placement.Fragmented,
			wantSentence: "needs 5 GiB on one GPU; free: GPU0 4, GPU1 4 (8 in all, fragmented); pods whose GPU is not known yet, counted on each: 1",
		},
		"a pod with one GPU known and one not counts whole on each": {
			req: ask(3), node: node(two, hold("a", ask(8, count(2)), 0, 7)), want: placement.Fragmented,
			wantSentence: "needs 3 GiB on one GPU; free: GPU0 2, GPU1 2 (4 in all, fragmented); pods whose GPU is not known yet, counted on each: 1",
		},
		"an exclusive pod may be with one of unknown GPU": {
			req: ask(1, policy(placement.Exclusive)), node: node(two, hold("a", ask(1))), want: placement.Occupied,
			wantSentence: "needs 1 GiB on one GPU alone; free: GPU0 occupied, GPU1 occupied; pods whose GPU is not known yet, counted on each: 1",
		},
		"an exclusive pod of unknown GPU keeps all": {
			req: ask(1), node: node(two, hold("a", ask(1, policy(placement.Exclusive)))), want: placement.Occupied,
			wantSentence: "needs 1 GiB on one GPU; free: GPU0 occupied, GPU1 occupied; pods whose GPU is not known yet, counted on each: 1",
		},
		"a pod that asks for none of the resource is in nobody's way": {
			req: ask(1, policy(placement.Exclusive)), node: node(two, hold("a", placement.Request{})), want: placement.Fits,
			wantSentence: "needs 1 GiB on one GPU alone; fits",
		},
		"unequal GPUs of 2 and 6, and 5 wanted": {
			req: ask(5), node: node(inventory(device(0, 2), device(1, 6))), want: placement.Fits,
			wantSentence: "needs 5 GiB on one GPU; fits",
		},
		"amounts in MiB": {
			req: ask(5), node: node(gpu.Inventory{UnitMiB: 256, Devices: two.Devices}, hold("a", ask(6), 0), hold("b", ask(9), 1)), want: placement.Fragmented,
			wantSentence: "needs 1280 MiB on one GPU; free: GPU0 1024, GPU1 256 (1280 in all, fragmented)",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := placement.Fit(tc.req, tc.node)
			if got.Reason != tc.want {
				t.Errorf("Fit: %s, want %s", got.Reason, tc.want)
			}
			if diff := cmp.Diff(tc.wantSentence, reasons.Verdict(got)); diff != "" {
				t.Errorf("sentence (-want +got):\n%s", diff)
			}
			if got.Unresolvable() != tc.unresolvable {
				t.Errorf("Unresolvable() = %t, want %t", got.Unresolvable(), tc.unresolvable)
			}
		})
	}
}

func TestReasonsHaveNames(t *testing.T) {
	var names []string
	for r := placement.NoDevices; r <= placement.Fragmented; r++ {
		if r.String() == "" || slices.Contains(names, r.String()) {
			t.Errorf("reason %d has no name of its own: %q", uint8(r), r)
		}
		names = append(names, r.String())
	}
	if len(names) != int(placement.Fragmented) || names[len(names)-1] != "Fragmented" || placement.Fits.String() != "Fits" {
		t.Errorf("the reasons are %s and %s", names, placement.Fits)
	}
}

func TestGlobsOfModels(t *testing.T) {
	for _, tc := range []struct {
		glob, model string
		want        bool
	}{
		{"A100*", "NVIDIA A100-SXM4-80GB", true},
		{"nvidia a100*", "NVIDIA A100-SXM4-80GB", true},
		{"A100*", "NVIDIA-A100-SXM4-80GB", true}, // as in a label
		{"T4*", "Tesla T4", true},
		{"T4", "Tesla T4", true},
		{"T4", "Tesla-T4", true},
		{"Tesla*", "Tesla T4", true},
		{"V100*", "NVIDIA Tesla V100-SXM2-16GB", true},
		{"Tesla V100*", "NVIDIA Tesla V100-SXM2-16GB", true},
		{"!T4", "Tesla T4", false},
		{"!Tesla*", "Tesla T4", false},
		{"4", "Tesla T4", false},
		{"T4", "Tesla T4G", false},
		{"*", "", true},
		{"Tesla", "Tesla", true},
	} {
		if got := placement.NewGlobs(tc.glob).MatchModel(tc.model); got != tc.want {
			t.Errorf("%q matches the model %q: %t, want %t", tc.glob, tc.model, got, tc.want)
		}
	}
}

func TestGlobs(t *testing.T) {
	a100, t4 := []string{"NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"}, []string{"Tesla T4"}
	tests := map[string]struct {
		globs []string
		names []string
		want  bool
	}{
		"no globs let everything pass":           {nil, t4, true},
		"one of the names is enough":             {[]string{"A100*"}, a100, true},
		"the maker's name may be written":        {[]string{"NVIDIA A100*"}, a100, true},
		"a label has dashes for spaces":          {[]string{"NVIDIA-A100-SXM4-80GB"}, a100, true},
		"case does not count":                    {[]string{"tesla t?"}, t4, true},
		"a glob is for the whole name":           {[]string{"A100"}, a100, false},
		"one of several is enough":               {[]string{"H100*", "*T4"}, t4, true},
		"an exclusion alone lets others pass":    {[]string{"!A100*"}, t4, true},
		"an exclusion excludes by each name":     {[]string{"!A100-SXM4-80GB"}, a100, false},
		"an exclusion wins wherever it stands":   {[]string{"A100*", "!*80GB"}, a100, false},
		"a match of something else is no match":  {[]string{"H100*", "!A100*"}, t4, false},
		"a malformed glob matches nothing":       {[]string{"[A100"}, a100, false},
		"a malformed exclusion excludes nothing": {[]string{"![A100"}, a100, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := placement.NewGlobs(tc.globs...).Match(tc.names...); got != tc.want {
				t.Errorf("%q.Match(%q) = %t, want %t", tc.globs, tc.names, got, tc.want)
			}
		})
	}
}

// manyGlobs returns a list of the maximum length that matches nothing.
func manyGlobs(exclude string) []string {
	var out []string
	for i := range 32 {
		out = append(out, fmt.Sprintf("%sZ%d-*", exclude, i))
	}
	return out
}

func eightGPUs() placement.Node {
	inv := inventory()
	for i := range 8 {
		inv.Devices = append(inv.Devices, device(i, 80, model("NVIDIA A100-SXM4-80GB")))
	}
	return node(inv)
}

// Nodes evaluate the maximum number of globs, and a refusal renders them.
func TestManyGlobsCostLittle(t *testing.T) {
	for name, tc := range map[string]struct {
		exclude string
		want    placement.Reason
	}{"all pass": {"!", placement.Fits}, "none passes": {"", placement.NoSuchDevice}} {
		req, n := ask(4, globsOf(manyGlobs(tc.exclude)...), uuids(manyGlobs(tc.exclude)...)), eightGPUs()
		made := testing.AllocsPerRun(10, func() {
			v := placement.Fit(req, n)
			if v.Reason != tc.want || reasons.Verdict(v) == "" {
				t.Fatalf("%s: %s: %s", name, v.Reason, v.Reason)
			}
		})
		if made > 1000 {
			t.Errorf("%s: %.0f allocations for one node, want 1000 at most", name, made)
		}
	}
}

// BenchmarkGlobs measures the evaluation of 1,000 nodes with eight GPUs.
func BenchmarkGlobs(b *testing.B) {
	for name, exclude := range map[string]string{"all pass": "!", "none passes": ""} {
		req, n := ask(4, globsOf(manyGlobs(exclude)...), uuids(manyGlobs(exclude)...)), eightGPUs()
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for range 1000 {
					if v := placement.Fit(req, n); reasons.Verdict(v) == "" {
						b.Fatal("a verdict without words")
					}
				}
			}
		})
	}
}

func TestRequestUnits(t *testing.T) {
	c := func(kind placement.ContainerKind, units gpu.Units) placement.Container {
		return placement.Container{Kind: kind, Units: units, Cores: int(units) * 10}
	}
	tests := map[string]struct {
		containers []placement.Container
		want       gpu.Units
	}{
		"nothing":                                         {nil, 0},
		"app containers add up":                           {[]placement.Container{c(placement.App, 1), c(placement.App, 2)}, 3},
		"init containers do not":                          {[]placement.Container{c(placement.Init, 1), c(placement.Init, 2)}, 2},
		"a small init container is covered":               {[]placement.Container{c(placement.Init, 3), c(placement.App, 2), c(placement.App, 2)}, 4},
		"a large init container counts":                   {[]placement.Container{c(placement.Init, 5), c(placement.App, 2), c(placement.App, 2)}, 5},
		"a sidecar runs beside the apps":                  {[]placement.Container{c(placement.Sidecar, 1), c(placement.App, 2)}, 3},
		"a sidecar runs beside the inits that follow":     {[]placement.Container{c(placement.Sidecar, 1), c(placement.Init, 3), c(placement.App, 1), c(placement.App, 2)}, 4},
		"a sidecar does not run beside the inits before":  {[]placement.Container{c(placement.Init, 4), c(placement.Sidecar, 1), c(placement.App, 2)}, 4},
		"two sidecars and what follows each":              {[]placement.Container{c(placement.Sidecar, 1), c(placement.Init, 5), c(placement.Sidecar, 2), c(placement.Init, 4), c(placement.App, 1)}, 7},
		"the kubelet's order is that of the pod's fields": {[]placement.Container{c(placement.Init, 1), c(placement.Sidecar, 2), c(placement.App, 3)}, 5},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := placement.Request{Containers: placement.NewContainers(tc.containers...)}
			if got := r.Units(); got != tc.want {
				t.Errorf("Units() = %d, want %d", got, tc.want)
			}
			if got, want := r.Cores(), int(tc.want)*10; got != want {
				t.Errorf("Cores() = %d, want %d", got, want)
			}
			if got := r.Empty(); got != (len(tc.containers) == 0) {
				t.Errorf("Empty() = %t", got)
			}
		})
	}
}

func TestShareRoundsUp(t *testing.T) {
	units, percent := ask(7, cores(50), count(3)).Share()
	if units != 3 || percent != 17 {
		t.Errorf("a third of 7 units and 50%% = %d and %d%%, want 3 and 17%%", units, percent)
	}
	for _, n := range []int{-3, 0, 1} {
		if r := ask(7, count(n)); r.GPUs() != 1 {
			t.Errorf("a count of %d is %d GPUs, want 1", n, r.GPUs())
		}
	}
}

// changes returns copies of a value with one field changed each, by the field's name.
func changes(v reflect.Value) map[string]reflect.Value {
	out := make(map[string]reflect.Value)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		changed := func(to reflect.Value) reflect.Value {
			c := reflect.New(v.Type()).Elem()
			c.Set(v)
			c.Field(i).Set(to)
			return c
		}
		switch f := v.Field(i); {
		case f.Type() == reflect.TypeFor[placement.Globs]():
			out[name] = changed(reflect.ValueOf(placement.NewGlobs("other")))
		case f.Type() == reflect.TypeFor[placement.Containers]():
			for part, to := range changes(reflect.ValueOf(f.Interface().(placement.Containers).All()[0])) {
				out[name+"."+part] = changed(reflect.ValueOf(placement.NewContainers(to.Interface().(placement.Container))))
			}
		case f.Kind() == reflect.Struct:
			for part, to := range changes(f) {
				out[name+"."+part] = changed(to)
			}
		case f.Kind() == reflect.Bool:
			out[name] = changed(reflect.ValueOf(!f.Bool()))
		case f.Kind() == reflect.String:
			out[name] = changed(reflect.ValueOf("other").Convert(f.Type()))
		default:
			out[name] = changed(reflect.ValueOf(9).Convert(f.Type()))
		}
	}
	return out
}

// The key of a request contains all fields except the fields that this test names. The test also covers
// new fields.
func TestKey(t *testing.T) {
	base := placement.Request{Containers: placement.NewContainers(placement.Container{Name: "main", Kind: placement.App, Units: 3, Cores: 10})}
	fields := changes(reflect.ValueOf(base))
	if len(fields) < 16 {
		t.Errorf("%d fields were looked at", len(fields))
	}
	for field, changed := range fields {
		r := changed.Interface().(placement.Request)
		if got, want := r.Key() == base.Key(), field == "Priority" || field == "Containers.Name"; got != want {
			t.Errorf("with another %s the key is the same: %t, want %t", field, got, want)
		}
		if got, want := r.Interchangeable(base), field == "Priority" || field == "Containers.Name" || field == "CPU"; got != want {
			t.Errorf("with another %s the pods are interchangeable: %t, want %t", field, got, want)
		}
	}
}

func TestInterchangeable(t *testing.T) {
	base := ask(3, cores(10))
	different := map[string]placement.Request{
		"units":            ask(4, cores(10)),
		"cores":            ask(3, cores(20)),
		"count":            ask(3, cores(10), count(3)),
		"split":            {Containers: placement.NewContainers(placement.Container{Units: 1, Cores: 10}, placement.Container{Units: 2})},
		"a second of none": {Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: 3, Cores: 10}, placement.Container{})},
	}
	for name, other := range different {
		if base.Interchangeable(other) || other.Interchangeable(base) {
			t.Errorf("pods that differ in %s are called interchangeable", name)
		}
	}
	for name, in := range map[string]func(namespace, g string) placementtest.OfRequest{"group": groupOf, "exclusive group": exclusiveGroupOf} {
		if ask(3, in("a", "g")).Interchangeable(ask(3, in("b", "g"))) {
			t.Errorf("pods whose %s is of another namespace are called interchangeable", name)
		}
	}
	renamed := ask(3, cores(10), count(1))
	renamed.Containers = renamed.Containers.Each(func(c *placement.Container) { c.Name = "other" })
	if !base.Interchangeable(renamed) {
		t.Error("pods that differ in a container's name are not called interchangeable")
	}
	for name, tc := range map[string]struct {
		a, b placement.Request
		want bool
	}{
		"as much memory":                     {base, different["cores"], true},
		"as many cores":                      {base, different["units"], true},
		"nothing alike":                      {base, ask(4, cores(20)), false},
		"no cores are not as many":           {ask(3), ask(4), false},
		"the cores of a second container":    {placement.Request{Containers: placement.NewContainers(placement.Container{Units: 1}, placement.Container{Units: 9, Cores: 10})}, base, true},
		"the memory of a second container":   {placement.Request{Containers: placement.NewContainers(placement.Container{Units: 1}, placement.Container{Units: 3})}, base, false},
		"a pod that asks for nothing":        {base, placement.Request{}, false},
		"two pods that ask for nothing":      {placement.Request{}, placement.Request{}, false},
		"the cores are a later question too": {placement.Request{Containers: placement.NewContainers(placement.Container{Units: 1, Cores: 5}, placement.Container{Units: 9, Cores: 10})}, base, false},
	} {
		if tc.a.Confusable(tc.b) != tc.want || tc.b.Confusable(tc.a) != tc.want {
			t.Errorf("%s: Confusable is not %t both ways", name, tc.want)
		}
	}
}

// FuzzGlobs checks that the order of the globs and the case of letters do not matter, that a name without
// special characters matches itself, and that a "!" inverts a match.
func FuzzGlobs(f *testing.F) {
	f.Add("A100*,!A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")
	f.Add("!", "")
	f.Add("[a-,\\\\,*", "[")
	f.Add("!!a,a", "!a")
	f.Fuzz(func(t *testing.T, list, name string) {
		if !utf8.ValidString(list + name) {
			return // the API server stores valid UTF-8
		}
		match := func(globs []string, name string) bool { return placement.NewGlobs(globs...).Match(name) }
		globs := strings.Split(list, ",")
		got := match(globs, name)
		slices.Reverse(globs)
		if match(globs, name) != got {
			t.Errorf("%q and %q: %t, and otherwise in reverse", list, name, got)
		}
		if upper := asciiUpper(name); match(globs, upper) != got {
			t.Errorf("%q and %q: %t, and otherwise for %q", list, name, got, upper)
		}
		if got && match(append(globs, "!*", "!*/*"), name) && !strings.Contains(name, "/") {
			t.Errorf("%q and %q: everything is excluded, and it matches", list, name)
		}
		if plain := !strings.ContainsAny(name, `,!*?[\`); plain && name != "" {
			if !match([]string{name}, name) || match([]string{name, "!" + name}, name) {
				t.Errorf("%q is no glob for itself", name)
			}
		}
	})
}

// asciiUpper converts ASCII letters only, because some other letters change in a round trip.
func asciiUpper(s string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' {
			return r - 'a' + 'A'
		}
		return r
	}, s)
}

// The maximum number of clients depends on the driver. An unknown driver has the smallest.
func TestMPSClients(t *testing.T) {
	inv := inventory(device(0, 100))
	inv.MPS, inv.Enforcement = true, gpu.EnforcementMPS
	for driver, want := range map[string]int{"": 48, "535.104.05": 48, "580.95.05": 48, "590.44.01": 60, "615.71.09": 60} {
		inv.DriverVersion = driver
		var pods []placement.Holding
		for i := range want {
			name := fmt.Sprint(i)
			if got := placement.Fit(ask(1), placement.NewNode("n", inv, pods)).Reason; got != placement.Fits {
				t.Errorf("driver %q, next to %d: %s", driver, i, got)
			}
			pods = append(pods, placement.Holding{
				Pod: placement.PodRef{Namespace: "ns", Name: name, UID: name}, Request: ask(1), Assignment: placement.Assignment{Shares: []placement.Share{{Device: inv.Devices[0].UUID, Units: 1}}},
			})
		}
		verdict := placement.Fit(ask(1), placement.NewNode("n", inv, pods))
		if says := fmt.Sprintf("has no MPS client left of %d", want); verdict.Reason != placement.Occupied || !strings.Contains(reasons.Verdict(verdict), says) {
			t.Errorf("driver %q, next to %d: %s, want %q", driver, want, reasons.Verdict(verdict), says)
		}
	}
}

// A pod on an unknown GPU may be a client on each GPU.
func TestAClientOfMPSWhoseGPUIsUnknown(t *testing.T) {
	inv := inventory(device(0, 100))
	inv.MPS, inv.Enforcement = true, gpu.EnforcementMPS
	for pods, want := range map[int]placement.Reason{placement.MPSClients - 1: placement.Fits, placement.MPSClients: placement.Occupied} {
		n := placement.NewNode("n", inv, nil)
		for i := range pods {
			n.Unattributed = append(n.Unattributed, hold(fmt.Sprint(i), ask(1)))
		}
		if got := placement.Fit(ask(1), n).Reason; got != want {
			t.Errorf("next to %d: %s, want %s", pods, got, want)
		}
	}
}

// TestClientsOfMPS checks the limit of 48 clients on a GPU. Each container is a client if a daemon runs.
func TestClientsOfMPS(t *testing.T) {
	inv := inventory(device(0, 100))
	container := func(kind placement.ContainerKind, units gpu.Units) placement.Container {
		return placement.Container{Kind: kind, Units: units}
	}
	holding := func(n int, containers ...placement.Container) placement.Holding {
		name := fmt.Sprintf("p%02d", n)
		return placement.Holding{
			Pod: placement.PodRef{Namespace: "ns", Name: name, UID: name}, Request: placement.Request{Containers: placement.NewContainers(containers...)},
			Assignment: placement.Assignment{Shares: []placement.Share{{Device: inv.Devices[0].UUID, Units: 1}}},
		}
	}
	var pods []placement.Holding
	for i := range 46 {
		pods = append(pods, holding(i, container(placement.App, 1)))
	}
	// An init container has ended when the others run.
	pods = append(pods, holding(46, container(placement.Init, 1), container(placement.App, 1)))
	for _, tc := range []struct {
		level gpu.Enforcement
		mps   bool
		req   placement.Request
		want  placement.Reason
	}{
		{gpu.EnforcementAdvisory, false, placement.Request{Containers: placement.NewContainers(container(placement.App, 1), container(placement.App, 1))}, placement.Fits},
		{gpu.EnforcementMPS, true, placement.Request{Containers: placement.NewContainers(container(placement.App, 1))}, placement.Fits},
		{gpu.EnforcementMPS, true, placement.Request{Containers: placement.NewContainers(container(placement.App, 1), container(placement.App, 0))}, placement.Fits}, // the other container requests only cores
		{gpu.EnforcementMPS, false, placement.Request{Containers: placement.NewContainers(container(placement.App, 1), container(placement.App, 1))}, placement.Occupied},
		{gpu.EnforcementMPS, true, placement.Request{Containers: placement.NewContainers(container(placement.Sidecar, 1), container(placement.App, 1))}, placement.Occupied},
		{gpu.EnforcementKernel, true, placement.Request{Containers: placement.NewContainers(container(placement.App, 1), container(placement.App, 1))}, placement.Occupied},
		{gpu.EnforcementKernel, false, placement.Request{Containers: placement.NewContainers(container(placement.App, 1), container(placement.App, 1))}, placement.Fits},
	} {
		inv.Enforcement, inv.MPS = tc.level, tc.mps
		verdict := placement.Fit(tc.req, placement.NewNode("n", inv, pods))
		if verdict.Reason != tc.want {
			t.Errorf("%s, %d containers: %s, want %s", tc.level, len(tc.req.Containers.All()), verdict.Reason, tc.want)
		}
		if want := "has no MPS client left of 48"; tc.want == placement.Occupied && !strings.Contains(reasons.Verdict(verdict), want) {
			t.Errorf("%q does not say %q", reasons.Verdict(verdict), want)
		}
	}
}

// LargestFree returns the largest amount that Fit accepts.
func TestLargestFree(t *testing.T) {
	two := inventory(device(0, 14), device(1, 14))
	alone := policy(placement.Exclusive)
	served := inventory(device(0, 100), device(1, 5))
	served.Enforcement = gpu.EnforcementMPS
	var clients []placement.Holding
	for i := range 48 {
		clients = append(clients, hold(fmt.Sprint("client-", i), ask(1), 0))
	}
	for name, tc := range map[string]struct {
		node placement.Node
		want gpu.Units
	}{
		"empty":                         {node(two), 14},
		"beside others":                 {node(two, hold("a", ask(4), 0), hold("b", ask(9), 1)), 10},
		"of a GPU that is not healthy":  {node(inventory(device(0, 14, sick), device(1, 14)), hold("b", ask(9), 1)), 5},
		"of a GPU that is held alone":   {node(two, hold("a", ask(4, alone), 0), hold("b", ask(9), 1)), 5},
		"of GPUs that are held alone":   {node(two, hold("a", ask(4, alone), 0), hold("b", ask(4, alone), 1)), 0},
		"the pod may be on any of them": {node(two, hold("a", ask(4, alone))), 0},
		"beside an exclusive group":     {node(two, hold("a", ask(4, exclusiveGroup("x")), 0), hold("b", ask(9), 1)), 10},
		"a pod of two GPUs is on none":  {node(two, hold("a", ask(8, count(2)))), 6},
		"no MPS client is left":         {node(served, clients...), 5},
	} {
		got := nearmiss.LargestFree(tc.node)
		if got != tc.want || got > 0 && !placement.Fit(ask(got), tc.node).Fits() || placement.Fit(ask(got+1), tc.node).Fits() {
			t.Errorf("%s: %d, want %d, and that Fit agrees", name, got, tc.want)
		}
	}
}

// FuzzLargestFree checks that a plain request for the amount fits the node, and that a request for more
// does not.
func FuzzLargestFree(f *testing.F) {
	for seed := range uint64(500) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 43))
		inv, holdings, _ := placementtest.World(random)
		for i := range inv.Devices {
			inv.Devices[i].Foreign = gpu.Units(random.IntN(3))
		}
		n := placement.NewNode("n", inv, holdings)
		accepts := func(units gpu.Units) bool { return placement.Fit(ask(units), n).Fits() && n.InSum(ask(units)) }
		if got := nearmiss.LargestFree(n); got < 0 || got > 0 && !accepts(got) || accepts(got+1) {
			t.Errorf("%d is free on one GPU: as much goes there is %t (%s), and one more is %t", got, accepts(got), placement.Fit(ask(got), n).Reason, accepts(got+1))
		}
	})
}

// kube-scheduler counts each pod once, and subtracts the excess of one GPU from the others. A pod on an
// unknown GPU counts on each GPU, with its memory and its cores.
func TestLeftBesidePodsOnNoKnownGPU(t *testing.T) {
	lost := func(req placement.Request) placement.Holding {
		h := hold("lost", req)
		h.Assignment = placement.Assignment{}
		return h
	}
	type left struct {
		Units gpu.Units
		Cores int
	}
	for name, tc := range map[string]struct {
		holdings []placement.Holding
		want     []left
	}{
		"none":                {nil, []left{{10, 100}, {8, 100}}},
		"memory alone":        {[]placement.Holding{lost(ask(3))}, []left{{7, 100}, {5, 100}}},
		"cores too":           {[]placement.Holding{lost(ask(3, cores(30)))}, []left{{7, 70}, {5, 70}}},
		"over two GPUs":       {[]placement.Holding{lost(ask(4, cores(60), count(2)))}, []left{{6, 40}, {4, 40}}},
		"another on its GPU":  {[]placement.Holding{lost(ask(3, cores(30))), hold("p", ask(2, cores(50)), 1)}, []left{{7, 70}, {3, 20}}},
		"more than there are": {[]placement.Holding{lost(ask(9, cores(80))), hold("p", ask(2, cores(50)), 1)}, []left{{1, 20}, {0, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(inventory(device(0, 10), device(1, 8)), tc.holdings...)
			var got []left
			for _, d := range n.Devices {
				got = append(got, left{n.FreeOn(d).Units, n.FreeOn(d).Cores})
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatKubeSchedulerCounts(t *testing.T) {
	two := inventory(device(0, 10), device(1, 10))
	leaving := func(h placement.Holding, from int) placement.Holding {
		h.Assignment.Leaving = []gpu.UUID{placementtest.UUID(from)}
		return h
	}
	for name, tc := range map[string]struct {
		node        placement.Node
		units       gpu.Units
		cores       int
		largestFree gpu.Units
	}{
		"nobody is there":         {node(two), 20, 200, 10},
		"pods":                    {node(two, hold("a", ask(4, cores(30)), 0), hold("b", ask(6), 1)), 10, 170, 6},
		"over-committed":          {node(two, hold("a", ask(14, cores(30)), 0)), 6, 170, 6},
		"out of use":              {node(inventory(device(0, 10, sick), device(1, 10)), hold("a", ask(4, cores(30)), 0)), 6, 70, 6},
		"cordoned":                {node(inventory(device(0, 10, cordoned), device(1, 10)), hold("a", ask(4, cores(30)), 0)), 16, 170, 10},
		"less than nothing":       {node(inventory(device(0, 20, sick), device(1, 10)), hold("a", ask(14), 0)), -4, 100, 0},
		"on no known GPU":         {node(two, hold("a", ask(4, cores(30)))), 16, 170, 6},
		"pods that exchange GPUs": {node(inventory(device(0, 10), device(1, 10), device(2, 10)), leaving(hold("a", ask(8, cores(60)), 0), 1), leaving(hold("b", ask(6, cores(70)), 1), 0)), 16, 170, 10},
	} {
		if units, cores := tc.node.Unrequested(); units != tc.units || cores != tc.cores {
			t.Errorf("%s: %d units and %d per cent of cores, want %d and %d", name, units, cores, tc.units, tc.cores)
		}
		if got := nearmiss.LargestFree(tc.node); got != tc.largestFree {
			t.Errorf("%s: %d are free on one GPU, want %d", name, got, tc.largestFree)
		}
		for units := range gpu.Units(20) {
			if got, want := tc.node.InSum(ask(units, cores(100))), units <= tc.units && tc.cores >= 100; got != want {
				t.Errorf("%s: %d units are in the sum: %t, want %t", name, units, got, want)
			}
		}
	}
}

// used returns a device with units in use by programs without a grant.
func used(d gpu.Device, units gpu.Units) gpu.Device {
	d.Foreign = units
	return d
}

func named(d gpu.Device, id gpu.UUID) gpu.Device {
	d.UUID = id
	return d
}

// TestClientsOfAnInstance checks that a MIG instance serves fewer clients of MPS than a GPU.
func TestClientsOfAnInstance(t *testing.T) {
	d := migDevice(0, 10)
	inv := inventory(d)
	inv.MPS, inv.Enforcement = true, gpu.EnforcementMPS
	var pods []placement.Holding
	for i, want := range []placement.Reason{placement.Fits, placement.Fits, placement.Fits, placement.Fits, placement.Fits, placement.Fits, placement.Occupied} {
		if got := placement.Fit(ask(1), placement.NewNode("n", inv, pods)).Reason; got != want {
			t.Errorf("next to %d: %s, want %s", i, got, want)
		}
		name := fmt.Sprint(i)
		pods = append(pods, placement.Holding{
			Pod: placement.PodRef{Namespace: "ns", Name: name, UID: name}, Request: ask(1), Assignment: placement.Assignment{Shares: []placement.Share{{Device: d.UUID, Units: 1}}},
		})
	}
}
