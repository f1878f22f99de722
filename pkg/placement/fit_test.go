package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// device returns a healthy GPU whose UUID is its index.
func device(index int, capacity gpu.Units, change ...func(*gpu.Device)) gpu.Device {
	d := gpu.Device{
		UUID: uuid(index), Index: index, Model: "NVIDIA A100-SXM4-80GB", Capacity: capacity,
		MemoryMiB: int64(capacity) * 1024, NUMANode: -1, Healthy: true,
	}
	for _, c := range change {
		c(&d)
	}
	return d
}

func uuid(index int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%d", index)) }

func sick(d *gpu.Device) { d.Healthy, d.Unhealthy = false, "XID 79" }

func model(m string) func(*gpu.Device) { return func(d *gpu.Device) { d.Model = m } }

func numa(n int) func(*gpu.Device) { return func(d *gpu.Device) { d.NUMANode = n } }

func speed(n int) func(*gpu.Device) { return func(d *gpu.Device) { d.Speed = n } }

func link(a, b, lanes int) gpu.Link { return gpu.Link{A: uuid(a), B: uuid(b), Lanes: lanes} }

func inventory(devices ...gpu.Device) gpu.Inventory {
	return gpu.Inventory{UnitMiB: 1024, Devices: devices}
}

// node returns a node with holdings in the order given.
func node(inv gpu.Inventory, holdings ...Holding) Node { return NewNode("n", inv, holdings) }

// ask returns a request of one container.
func ask(units gpu.Units, change ...func(*Request)) Request {
	r := Request{Containers: []Container{{Name: "main", Kind: App, Units: units}}}
	for _, c := range change {
		c(&r)
	}
	return r
}

func cores(n int) func(*Request)                { return func(r *Request) { r.Containers[0].Cores = n } }
func count(n int) func(*Request)                { return func(r *Request) { r.Count = n } }
func policy(p Policy) func(*Request)            { return func(r *Request) { r.Policy = p } }
func globsOf(globs ...string) func(*Request)    { return func(r *Request) { r.Models = globs } }
func uuids(globs ...string) func(*Request)      { return func(r *Request) { r.UUIDs = globs } }
func group(g string) func(*Request)             { return func(r *Request) { r.Group = g } }
func exclusiveGroup(g string) func(*Request)    { return func(r *Request) { r.ExclusiveGroup = g } }
func prefers(p Preference) func(*Request)       { return func(r *Request) { r.Preference = p } }
func enforced(e gpu.Enforcement) func(*Request) { return func(r *Request) { r.Enforcement = e } }

// hold returns a pod that holds its share of each of the devices.
func hold(name string, r Request, devices ...int) Holding {
	var a Assignment
	for _, d := range devices {
		a.Shares = append(a.Shares, Share{Device: uuid(d)})
	}
	return Holding{Pod: PodRef{Namespace: "ns", Name: name, UID: name}, Request: r, Assignment: a.WithShares(r)}
}

func TestFit(t *testing.T) {
	two := inventory(device(0, 10), device(1, 10))
	tests := map[string]struct {
		req          Request
		node         Node
		want         Reason
		wantSentence string
		unresolvable bool
	}{
		"an empty GPU that is just large enough": {
			req: ask(10), node: node(two), want: Fits,
			wantSentence: "needs 10 GiB on one GPU; fits",
		},
		"no device plugin has reported": {
			req: ask(1), node: Node{Name: "n"}, want: NoDevices, unresolvable: true,
			wantSentence: "the node offers no GPU memory: its device plugin has found no GPU, or has not reported yet",
		},
		"the node enforces less than is demanded": {
			req: ask(1, enforced(gpu.EnforcementKernel)), node: node(two), want: WeakerEnforcement, unresolvable: true,
			wantSentence: "wants enforcement kernel; this node has advisory: ask for that, or for none",
		},
		"the node enforces more than is demanded": {
			req:  ask(1, enforced(gpu.EnforcementMPS)),
			node: node(gpu.Inventory{UnitMiB: 1024, Enforcement: gpu.EnforcementKernel, Devices: two.Devices}), want: Fits,
			wantSentence: "needs 1 GiB on one GPU; fits",
		},
		"no GPU of the model": {
			req: ask(1, globsOf("H100*", "!*PCIe")), node: node(inventory(device(0, 10), device(1, 10), device(2, 15, model("Tesla T4")))), want: NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches H100*,!*PCIe; this node has NVIDIA A100-SXM4-80GB, Tesla T4: change gpu-model",
		},
		"no GPU of the UUID": {
			req: ask(1, uuids("GPU-7")), node: node(inventory(device(0, 10, model("")))), want: NoSuchDevice, unresolvable: true,
			wantSentence: "wants a GPU that matches GPU-7; this node has a GPU of unknown model: change gpu-uuid",
		},
		"larger than any GPU, though not than all together": {
			req: ask(11), node: node(two), want: TooLarge, unresolvable: true,
			wantSentence: "needs 11 GiB on one GPU; the largest that qualifies here has 10 GiB: ask for less, or for more GPUs",
		},
		"an amount in bytes": {
			req: ask(3 << 30), node: node(two), want: TooLarge, unresolvable: true,
			wantSentence: "needs 3221225472 GiB on one GPU; the largest that qualifies here has 10 GiB: it counts units of 1 GiB, not bytes: ask for 3",
		},
		"larger than any GPU that the model allows": {
			req: ask(12, globsOf("A100*")), node: node(inventory(device(0, 10), device(1, 16, model("Tesla T4")))), want: TooLarge, unresolvable: true,
			wantSentence: "needs 12 GiB on one GPU that matches A100*; the largest that qualifies here has 10 GiB: ask for less, or for more GPUs",
		},
		"more cores than a GPU has": {
			req: ask(1, cores(150)), node: node(two), want: TooLarge, unresolvable: true,
			wantSentence: "needs 1 GiB and 150 per cent of cores on one GPU; the largest that qualifies here has 10 GiB and 100 per cent of cores: ask for less, or for more GPUs",
		},
		"more cores than a GPU has, over two GPUs": {
			req: ask(2, cores(150), count(2)), node: node(two), want: Fits,
			wantSentence: "needs 1 GiB and 75 per cent of cores on each of 2 GPUs; fits",
		},
		"fewer large GPUs than wanted": {
			req: ask(30, count(3)), node: node(inventory(device(0, 10), device(1, 9), device(2, 10))), want: TooFew, unresolvable: true,
			wantSentence: "needs 10 GiB on each of 3 GPUs; large enough here: 2: ask for fewer GPUs, or for less on each",
		},
		"fewer GPUs than wanted": {
			req: ask(4, count(4)), node: node(two), want: TooFew, unresolvable: true,
			wantSentence: "needs 1 GiB on each of 4 GPUs; large enough here: 2: ask for fewer GPUs, or for less on each",
		},
		"the only GPU is not healthy": {
			req: ask(3), node: node(inventory(device(0, 10, sick), device(1, 2))), want: Unhealthy,
			wantSentence: "needs 3 GiB on one GPU; GPU0 unhealthy (XID 79), GPU1 2",
		},
		"too few of several are healthy, for no reason given": {
			req: ask(4, count(2)), node: node(inventory(device(0, 10), device(1, 10, func(d *gpu.Device) { d.Healthy = false }))), want: Unhealthy,
			wantSentence: "needs 2 GiB on each of 2 GPUs; GPU0 10, GPU1 unhealthy (no reason given)",
		},
		"an exclusive pod finds every GPU in use": {
			req: ask(1, policy(Exclusive)), node: node(two, hold("a", ask(1), 0), hold("b", ask(1), 1)), want: Occupied,
			wantSentence: "needs 1 GiB on one GPU alone; GPU0 occupied, GPU1 occupied",
		},
		"every GPU has an exclusive pod": {
			req: ask(1), node: node(two, hold("a", ask(1, policy(Exclusive)), 0), hold("b", ask(1, policy(Exclusive)), 1)), want: Occupied,
			wantSentence: "needs 1 GiB on one GPU; GPU0 occupied, GPU1 occupied",
		},
		"an exclusive pod beside another's GPU": {
			req: ask(1, policy(Exclusive)), node: node(two, hold("a", ask(1, policy(Exclusive)), 0)), want: Fits,
			wantSentence: "needs 1 GiB on one GPU alone; fits",
		},
		"an exclusive group is on every GPU": {
			req: ask(1, exclusiveGroup("x")), node: node(two, hold("a", ask(1, exclusiveGroup("x")), 0), hold("b", ask(1, exclusiveGroup("x")), 1)), want: Occupied,
			wantSentence: `needs 1 GiB on one GPU apart from exclusive-group "x"; GPU0 occupied, GPU1 occupied`,
		},
		"another exclusive group does not matter": {
			req: ask(1, exclusiveGroup("x")), node: node(inventory(device(0, 10)), hold("a", ask(1, exclusiveGroup("y")), 0)), want: Fits,
			wantSentence: `needs 1 GiB on one GPU apart from exclusive-group "x"; fits`,
		},
		"two pods without an exclusive group are not of one": {
			req: ask(1), node: node(inventory(device(0, 10)), hold("a", ask(1), 0)), want: Fits,
			wantSentence: "needs 1 GiB on one GPU; fits",
		},
		"enough in all, on no GPU alone": {
			req: ask(10), node: node(two, hold("a", ask(4), 0), hold("b", ask(6), 1)), want: Fragmented,
			wantSentence: "needs 10 GiB on one GPU; free: GPU0 6, GPU1 4 (10 in all, fragmented)",
		},
		"not enough in all": {
			req: ask(10), node: node(two, hold("a", ask(5), 0), hold("b", ask(6), 1)), want: Insufficient,
			wantSentence: "needs 10 GiB on one GPU; free: GPU0 5, GPU1 4 (9 GiB in all)",
		},
		"what is free on GPUs of another model is no help": {
			req: ask(10, globsOf("A100*")), node: node(inventory(device(0, 10), device(1, 16, model("Tesla T4"))), hold("a", ask(4), 0)), want: Insufficient,
			wantSentence: "needs 10 GiB on one GPU that matches A100*; free: GPU0 6 (6 GiB in all)",
		},
		"what is free on a cordoned GPU is no help": {
			req: ask(3), node: node(inventory(device(0, 10, func(d *gpu.Device) { d.Healthy, d.Unhealthy = false, gpu.Cordoned }), device(1, 2))), want: Unhealthy,
			wantSentence: "needs 3 GiB on one GPU; GPU0 cordoned, GPU1 2",
		},
		"what is free on an unhealthy GPU is no help": {
			req: ask(10), node: node(inventory(device(0, 10), device(1, 10, sick)), hold("a", ask(4), 0)), want: Insufficient,
			wantSentence: "needs 10 GiB on one GPU; free: GPU0 6, GPU1 unhealthy (XID 79) (6 GiB in all)",
		},
		"what is free beside an exclusive pod is no help": {
			req: ask(10), node: node(two, hold("a", ask(4), 0), hold("b", ask(1, policy(Exclusive)), 1)), want: Insufficient,
			wantSentence: "needs 10 GiB on one GPU; free: GPU0 6, GPU1 occupied (6 GiB in all)",
		},
		"what is free on a smaller GPU is fragmentation": {
			req: ask(10), node: node(inventory(device(0, 10), device(1, 6)), hold("a", ask(5), 0)), want: Fragmented,
			wantSentence: "needs 10 GiB on one GPU; free: GPU0 5, GPU1 6 (11 in all, fragmented)",
		},
		"two GPUs are wanted and one has room": {
			req: ask(16, count(2)), node: node(two, hold("a", ask(4), 0)), want: Fragmented,
			wantSentence: "needs 8 GiB on each of 2 GPUs; free: GPU0 6, GPU1 10 (16 in all, fragmented)",
		},
		"two jobs of 60 per cent on one GPU": {
			req: ask(1, cores(60)), node: node(inventory(device(0, 10)), hold("a", ask(1, cores(60)), 0)), want: Insufficient,
			wantSentence: "needs 1 GiB and 60 per cent of cores on one GPU; free: GPU0 9 and 40 per cent of cores (9 GiB and 40 per cent of cores in all)",
		},
		"memory is free on one GPU and cores on the other": {
			req: ask(5, cores(60)), node: node(two, hold("a", ask(8), 0), hold("b", ask(1, cores(60)), 1)), want: Fragmented,
			wantSentence: "needs 5 GiB and 60 per cent of cores on one GPU; free: GPU0 2 and 100 per cent of cores, GPU1 9 and 40 per cent of cores (11 and 140 per cent of cores in all, fragmented)",
		},
		"a third job of 60 per cent, for which the node's sum has room": {
			req: ask(1, cores(60)), node: node(two, hold("a", ask(1, cores(60)), 0), hold("b", ask(1, cores(60)), 1)), want: Fragmented,
			wantSentence: "needs 1 GiB and 60 per cent of cores on one GPU; free: GPU0 9 and 40 per cent of cores, GPU1 9 and 40 per cent of cores (18 and 80 per cent of cores in all, fragmented)",
		},
		"a job of 60 per cent beside one of 40": {
			req: ask(1, cores(60)), node: node(inventory(device(0, 10)), hold("a", ask(1, cores(40)), 0)), want: Fits,
			wantSentence: "needs 1 GiB and 60 per cent of cores on one GPU; fits",
		},
		"a GPU that shrank below what it has given has nothing": {
			req: ask(1), node: node(inventory(device(0, 4)), hold("a", ask(10), 0)), want: Insufficient,
			wantSentence: "needs 1 GiB on one GPU; free: GPU0 0 (0 GiB in all)",
		},
		"a GPU that shrank takes nothing from the others": {
			req: ask(10), node: node(inventory(device(0, 4), device(1, 10)), hold("a", ask(10), 0)), want: Fits,
			wantSentence: "needs 10 GiB on one GPU; fits",
		},
		"a pod of unknown GPU counts on each": {
			req: ask(5), node: node(two, hold("a", ask(6))), want: Fragmented,
			wantSentence: "needs 5 GiB on one GPU; free: GPU0 4, GPU1 4 (8 in all, fragmented); pods whose GPU is not known yet, counted on each: 1",
		},
		"a pod of a GPU that is gone counts on each": {
			req: ask(5), node: node(two, hold("a", ask(6), 7)), want: Fragmented,
			wantSentence: "needs 5 GiB on one GPU; free: GPU0 4, GPU1 4 (8 in all, fragmented); pods whose GPU is not known yet, counted on each: 1",
		},
		"a pod with one GPU known and one not counts whole on each": {
			req: ask(3), node: node(two, hold("a", ask(8, count(2)), 0, 7)), want: Fragmented,
			wantSentence: "needs 3 GiB on one GPU; free: GPU0 2, GPU1 2 (4 in all, fragmented); pods whose GPU is not known yet, counted on each: 1",
		},
		"an exclusive pod may be with one of unknown GPU": {
			req: ask(1, policy(Exclusive)), node: node(two, hold("a", ask(1))), want: Occupied,
			wantSentence: "needs 1 GiB on one GPU alone; GPU0 occupied, GPU1 occupied; pods whose GPU is not known yet, counted on each: 1",
		},
		"an exclusive pod of unknown GPU keeps all": {
			req: ask(1), node: node(two, hold("a", ask(1, policy(Exclusive)))), want: Occupied,
			wantSentence: "needs 1 GiB on one GPU; GPU0 occupied, GPU1 occupied; pods whose GPU is not known yet, counted on each: 1",
		},
		"a pod that asks for none of the resource is in nobody's way": {
			req: ask(1, policy(Exclusive)), node: node(two, hold("a", Request{})), want: Fits,
			wantSentence: "needs 1 GiB on one GPU alone; fits",
		},
		"unequal GPUs of 2 and 6, and 5 wanted": {
			req: ask(5), node: node(inventory(device(0, 2), device(1, 6))), want: Fits,
			wantSentence: "needs 5 GiB on one GPU; fits",
		},
		"amounts in MiB": {
			req: ask(5), node: node(gpu.Inventory{UnitMiB: 256, Devices: two.Devices}, hold("a", ask(6), 0), hold("b", ask(9), 1)), want: Fragmented,
			wantSentence: "needs 1280 MiB on one GPU; free: GPU0 1024, GPU1 256 (1280 in all, fragmented)",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := Fit(tc.req, tc.node)
			if got.Reason != tc.want {
				t.Errorf("Fit: %s, want %s", got.Reason, tc.want)
			}
			if diff := cmp.Diff(tc.wantSentence, got.String()); diff != "" {
				t.Errorf("sentence (-want +got):\n%s", diff)
			}
			if got.Unresolvable() != tc.unresolvable {
				t.Errorf("Unresolvable() = %t, want %t", got.Unresolvable(), tc.unresolvable)
			}
		})
	}
}

func TestReasonsHaveNames(t *testing.T) {
	for r := Fits; r <= Fragmented; r++ {
		if strings.HasPrefix(r.String(), "Reason(") {
			t.Errorf("reason %d has no name", uint8(r))
		}
	}
	if got := (Fragmented + 1).String(); got != "Reason(10)" {
		t.Errorf("a reason that is none is called %q", got)
	}
}

func TestMatchGlobs(t *testing.T) {
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
		"an empty glob matches nothing":          {[]string{""}, t4, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := MatchGlobs(tc.globs, tc.names...); got != tc.want {
				t.Errorf("MatchGlobs(%q, %q) = %t, want %t", tc.globs, tc.names, got, tc.want)
			}
		})
	}
}

func TestRequestUnits(t *testing.T) {
	c := func(kind ContainerKind, units gpu.Units) Container {
		return Container{Kind: kind, Units: units, Cores: int(units) * 10}
	}
	tests := map[string]struct {
		containers []Container
		want       gpu.Units
	}{
		"nothing":                                         {nil, 0},
		"app containers add up":                           {[]Container{c(App, 1), c(App, 2)}, 3},
		"init containers do not":                          {[]Container{c(Init, 1), c(Init, 2)}, 2},
		"a small init container is covered":               {[]Container{c(Init, 3), c(App, 2), c(App, 2)}, 4},
		"a large init container counts":                   {[]Container{c(Init, 5), c(App, 2), c(App, 2)}, 5},
		"a sidecar runs beside the apps":                  {[]Container{c(Sidecar, 1), c(App, 2)}, 3},
		"a sidecar runs beside the inits that follow":     {[]Container{c(Sidecar, 1), c(Init, 3), c(App, 1), c(App, 2)}, 4},
		"a sidecar does not run beside the inits before":  {[]Container{c(Init, 4), c(Sidecar, 1), c(App, 2)}, 4},
		"two sidecars and what follows each":              {[]Container{c(Sidecar, 1), c(Init, 5), c(Sidecar, 2), c(Init, 4), c(App, 1)}, 7},
		"the kubelet's order is that of the pod's fields": {[]Container{c(Init, 1), c(Sidecar, 2), c(App, 3)}, 5},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := Request{Containers: tc.containers}
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

func TestInterchangeable(t *testing.T) {
	base := ask(3, cores(10))
	different := map[string]Request{
		"units":            ask(4, cores(10)),
		"cores":            ask(3, cores(20)),
		"count":            ask(3, cores(10), count(3)),
		"policy":           ask(3, cores(10), policy(Spread)),
		"preference":       ask(3, cores(10), prefers(Fastest)),
		"models":           ask(3, cores(10), globsOf("A*")),
		"uuids":            ask(3, cores(10), uuids("*")),
		"group":            ask(3, cores(10), group("g")),
		"exclusive group":  ask(3, cores(10), exclusiveGroup("g")),
		"enforcement":      ask(3, cores(10), enforced(gpu.EnforcementMPS)),
		"kind":             {Containers: []Container{{Kind: Sidecar, Units: 3, Cores: 10}}},
		"split":            {Containers: []Container{{Units: 1, Cores: 10}, {Units: 2}}},
		"a second of none": {Containers: []Container{{Kind: App, Units: 3, Cores: 10}, {}}},
	}
	for name, other := range different {
		if base.Interchangeable(other) || other.Interchangeable(base) {
			t.Errorf("pods that differ in %s are called interchangeable", name)
		}
	}
	renamed := ask(3, cores(10), count(1))
	renamed.Containers[0].Name = "other"
	if !base.Interchangeable(renamed) {
		t.Error("pods that differ in a container's name are not called interchangeable")
	}
	for name, tc := range map[string]struct {
		a, b Request
		want bool
	}{
		"as much memory":                     {base, different["cores"], true},
		"as many cores":                      {base, different["units"], true},
		"nothing alike":                      {base, ask(4, cores(20)), false},
		"no cores are not as many":           {ask(3), ask(4), false},
		"the cores of a second container":    {Request{Containers: []Container{{Units: 1}, {Units: 9, Cores: 10}}}, base, true},
		"the memory of a second container":   {Request{Containers: []Container{{Units: 1}, {Units: 3}}}, base, false},
		"a pod that asks for nothing":        {base, Request{}, false},
		"two pods that ask for nothing":      {Request{}, Request{}, false},
		"the cores are a later question too": {Request{Containers: []Container{{Units: 1, Cores: 5}, {Units: 9, Cores: 10}}}, base, false},
	} {
		if tc.a.Confusable(tc.b) != tc.want || tc.b.Confusable(tc.a) != tc.want {
			t.Errorf("%s: Confusable is not %t both ways", name, tc.want)
		}
	}
}

// FuzzMatchGlobs: neither the order of the globs nor the case of letters counts,
// a name without signs is a glob for itself, and what a glob has let in it keeps
// out with a "!".
func FuzzMatchGlobs(f *testing.F) {
	f.Add("A100*,!A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")
	f.Add("!", "")
	f.Add("[a-,\\\\,*", "[")
	f.Add("!!a,a", "!a")
	f.Fuzz(func(t *testing.T, list, name string) {
		if !utf8.ValidString(list + name) {
			return // the API server stores valid UTF-8
		}
		globs := strings.Split(list, ",")
		got := MatchGlobs(globs, name)
		slices.Reverse(globs)
		if MatchGlobs(globs, name) != got {
			t.Errorf("%q and %q: %t, and otherwise in reverse", list, name, got)
		}
		if upper := asciiUpper(name); MatchGlobs(globs, upper) != got {
			t.Errorf("%q and %q: %t, and otherwise for %q", list, name, got, upper)
		}
		if got && MatchGlobs(append(globs, "!*", "!*/*"), name) && !strings.Contains(name, "/") {
			t.Errorf("%q and %q: everything is excluded, and it matches", list, name)
		}
		if plain := !strings.ContainsAny(name, `!*?[\`); plain && name != "" {
			if !MatchGlobs([]string{name}, name) || MatchGlobs([]string{name, "!" + name}, name) {
				t.Errorf("%q is no glob for itself", name)
			}
		}
	})
}

// asciiUpper leaves alone the letters whose upper case has another lower case.
func asciiUpper(s string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' {
			return r - 'a' + 'A'
		}
		return r
	}, s)
}

// TestClientsOfMPS: the server has 48 clients on a GPU, and each container is one.
func TestClientsOfMPS(t *testing.T) {
	inv := inventory(device(0, 100))
	container := func(kind ContainerKind, units gpu.Units) Container { return Container{Kind: kind, Units: units} }
	holding := func(n int, containers ...Container) Holding {
		name := fmt.Sprintf("p%02d", n)
		return Holding{
			Pod: PodRef{Namespace: "ns", Name: name, UID: name}, Request: Request{Containers: containers},
			Assignment: Assignment{Shares: []Share{{Device: inv.Devices[0].UUID, Units: 1}}},
		}
	}
	var pods []Holding
	for i := range 46 {
		pods = append(pods, holding(i, container(App, 1)))
	}
	// An init container is no client any more when the others run.
	pods = append(pods, holding(46, container(Init, 1), container(App, 1)))
	for _, tc := range []struct {
		level gpu.Enforcement
		req   Request
		want  Reason
	}{
		{gpu.EnforcementAdvisory, Request{Containers: []Container{container(App, 1), container(App, 1)}}, Fits},
		{gpu.EnforcementMPS, Request{Containers: []Container{container(App, 1)}}, Fits},
		{gpu.EnforcementMPS, Request{Containers: []Container{container(App, 1), container(App, 1)}}, Occupied},
		{gpu.EnforcementMPS, Request{Containers: []Container{container(Sidecar, 1), container(App, 1)}}, Occupied},
		{gpu.EnforcementKernel, Request{Containers: []Container{container(App, 1), container(App, 1)}}, Occupied},
	} {
		inv.Enforcement = tc.level
		verdict := Fit(tc.req, NewNode("n", inv, pods))
		if verdict.Reason != tc.want {
			t.Errorf("%s, %d containers: %s, want %s", tc.level, len(tc.req.Containers), verdict, tc.want)
		}
		if want := "has no MPS client left of 48"; tc.want == Occupied && !strings.Contains(verdict.String(), want) {
			t.Errorf("%q does not say %q", verdict, want)
		}
	}
}
