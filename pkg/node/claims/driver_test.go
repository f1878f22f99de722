package claims

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
	"github.com/gpumem/gpumem/pkg/node/render"
)

func TestAClaimIsPreparedOnceAndForAll(t *testing.T) {
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	claim := allocated("a", result(gpuA, 3, 0))
	want := kubeletplugin.PrepareResult{Devices: []kubeletplugin.Device{{
		Requests: []string{"gpu"}, PoolName: node, DeviceName: gpuA, ShareID: new(types.UID("share")),
		CDIDeviceIDs: []string{"gpumem.dev/claim=uid-a"},
	}}}
	for range 2 {
		if diff := cmp.Diff(want, r.one(t, claim)); diff != "" {
			t.Error(diff)
		}
	}
	env := r.disk.env(t, claim.UID)
	for name, value := range map[string]string{
		"NVIDIA_VISIBLE_DEVICES": string(plugintest.GPUA), "GPUMEM_LIMIT_MIB": "3072", "GPUMEM_GPU_INDEX": "0", "GPUMEM_ENFORCEMENT": "advisory",
	} {
		if env[name] != value {
			t.Errorf("%s=%q, want %q", name, env[name], value)
		}
	}

	// The next process returns the same result, even after a failure of the GPU.
	r = newRig(t, plugintest.TwoGPUs(), r.disk)
	r.source.Set(func(inv *gpu.Inventory) { inv.Devices[0].Status = gpu.Unhealthy("XID 79") })
	if diff := cmp.Diff(want, r.one(t, claim)); diff != "" {
		t.Error(diff)
	}
	if err := errors.Join(r.undo(t, claim.UID), r.undo(t, claim.UID)); err != nil {
		t.Error(err)
	}
	if len(r.disk.specs) > 0 || len(r.Claims()) > 0 {
		t.Errorf("left: %v, %v", r.disk.specs, r.Claims())
	}
	if got := r.one(t, claim); got.Err == nil || !strings.Contains(got.Err.Error(), "claim a: GPU 0 (GPU-aaaaaaaa-0000-0000-0000-000000000000) is not healthy: XID 79") {
		t.Errorf("of a GPU that has failed: %v", got.Err)
	}
}

// TestSharesOfAGPU verifies that the driver counts the allocated shares, and that a container gets their memory
// and their part of the cores.
func TestSharesOfAGPU(t *testing.T) {
	inv := plugintest.TwoGPUs()
	inv.UnitMiB, inv.Enforcement, inv.MPS = 0, gpu.EnforcementMPS, true
	for i := range inv.Devices {
		inv.Devices[i].Allocatable, inv.Devices[i].ShareMiB = gpu.SharesPerDevice, int64(400*(i+1))
	}
	disk := newMemory()
	r := newRig(t, inv, disk)
	shares := func(name, device string, n int64) *resourceapi.ResourceClaim {
		return allocated(name, result(device, 1, 0, func(r *resourceapi.DeviceRequestAllocationResult) {
			r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"shares": *resource.NewQuantity(n, resource.DecimalSI)}
		}))
	}
	for _, tc := range []struct {
		claim *resourceapi.ResourceClaim
		err   string
	}{
		{shares("a", gpuB, 4), ""},
		{shares("b", gpuB, 6), ""},
		{shares("a", gpuB, 4), ""}, // again
		{shares("c", gpuB, 1), "GPU 1 has 10 shares, 10 of them prepared for other claims: 1 more are too much"},
		{shares("none", gpuA, 0), "it was allocated 0 of the 10 shares of a GPU"},
		{shares("many", gpuA, 11), "it was allocated 11 of the 10 shares of a GPU"},
		{allocated("gib", result(gpuA, 3, 0)), "it has 3072 MiB of GPU 0, which is not offered so any more"},
		{allocated("both", result(gpuA, 3, 0, func(r *resourceapi.DeviceRequestAllocationResult) {
			r.ConsumedCapacity["shares"] = *resource.NewQuantity(3, resource.DecimalSI)
		})), "it was allocated 3 of the 10 shares of a GPU"},
		{allocated("mixed", shares("x", gpuA, 1).Status.Allocation.Devices.Results[0], result(gpuB, 1, 0)), "it was allocated shares of one GPU and memory of another"},
	} {
		if got := r.one(t, tc.claim); (got.Err == nil) != (tc.err == "") || got.Err != nil && !strings.Contains(got.Err.Error(), tc.err) {
			t.Errorf("%s: %v, want %q", tc.claim.Name, got.Err, tc.err)
		}
	}
	if env := r.disk.env(t, "uid-a"); env["GPUMEM_LIMIT_MIB"] != "3200" || env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] != "0=3200M" {
		t.Errorf("4 shares of 800 MiB are %s MiB, and the limit of MPS %s", env["GPUMEM_LIMIT_MIB"], env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"])
	}
	given, _, _ := r.Allocations()
	var units gpu.Units
	for _, g := range given {
		for _, s := range g.Shares {
			units += s.Units
		}
	}
	if c := r.Claims()[0]; units != 10 || c.Shares[0].MiB != 3200 {
		t.Errorf("%d shares are allocated, and claim a is %+v", units, c)
	}
	prepared, _, _ := readClaims(disk, zap.NewNop())
	for _, c := range prepared {
		if !c.InShares() {
			t.Errorf("claim %s is to memory after a restart", c.Name)
		}
	}
	inv.Devices[1].ShareMiB = 700 // the driver reserves more
	r = newRig(t, inv, disk)
	if err := r.Restore(); err != nil {
		t.Fatal(err)
	}
	if env := r.disk.env(t, "uid-a"); env["GPUMEM_LIMIT_MIB"] != "3200" {
		t.Errorf("shares that were 3200 MiB when they were prepared are %s", env["GPUMEM_LIMIT_MIB"])
	}
	r = newRig(t, plugintest.TwoGPUs(), disk) // offers GiB
	if got := r.one(t, shares("d", gpuA, 1)); got.Err == nil || !strings.Contains(got.Err.Error(), "it has 1 share of GPU 0, which is not offered so any more") {
		t.Errorf("shares of a GPU that is offered by the amount: %v", got.Err)
	}
}

// A canceled call changes nothing, because the kubelet may have unprepared the claim since, or prepared it for
// another pod.
func TestACallThatIsGivenUpDoesNothing(t *testing.T) {
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	over, cancel := context.WithCancel(t.Context())
	cancel()
	claim := allocated("a", result(gpuA, 3, 0))
	got, err := r.PrepareResourceClaims(over, []*resourceapi.ResourceClaim{claim})
	if err != nil || got[claim.UID].Err == nil || len(r.disk.specs) > 0 || len(r.Claims()) > 0 {
		t.Errorf("prepared late: %v, %v, left: %v, %v", got, err, r.disk.specs, r.Claims())
	}
	if got := r.one(t, claim); got.Err != nil {
		t.Fatal(got.Err)
	}
	undone, err := r.UnprepareResourceClaims(over, []kubeletplugin.NamespacedObject{{UID: claim.UID}})
	if err != nil || undone[claim.UID] == nil || len(r.disk.specs) != 1 || len(r.Claims()) != 1 {
		t.Errorf("given back late: %v, %v, left: %v, %v", undone, err, r.disk.specs, r.Claims())
	}
}

func TestWhatIsRefused(t *testing.T) {
	other := func(change func(*resourceapi.DeviceRequestAllocationResult)) func(*resourceapi.DeviceRequestAllocationResult) {
		return change
	}
	withConfig := allocated("a", result(gpuA, 1, 0))
	withConfig.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: domain, Parameters: runtime.RawExtension{Raw: []byte(`{}`)}},
	}}}
	waits := allocated("a")
	waits.Status.Allocation = nil
	tests := []struct {
		name  string
		claim *resourceapi.ResourceClaim
		want  string // part of the error; empty if none
	}{
		{"all of a GPU", allocated("a", result(gpuA, 8, 100)), ""},
		{"two GPUs", allocated("a", result(gpuA, 2, 10), result(gpuB, 2, 10)), ""},
		{"two shares of one GPU", allocated("a", result(gpuA, 2, 10), result(gpuA, 3, 0)), ""},
		{"another driver's are not ours", allocated("a", result(gpuA, 1, 0), result("nic", 0, 0, other(func(r *resourceapi.DeviceRequestAllocationResult) { r.Driver = "nic.example.com" }))), ""},
		{"nothing of ours", allocated("a"), "it was allocated nothing of gpumem.dev"},
		{"not allocated", waits, "it is not allocated"},
		{"too much memory", allocated("a", result(gpuA, 9, 0)), "GPU 0 has 8192 MiB, 0 of them prepared for other claims: 9216 more are too much"},
		{"two shares of one GPU are too much", allocated("a", result(gpuA, 5, 0), result(gpuA, 5, 0)), "10240 more are too much"},
		{"too many cores", allocated("a", result(gpuA, 1, 60), result(gpuA, 1, 60)), "120 more are too much"},
		{"unequal parts", allocated("a", result(gpuA, 2, 0), result(gpuB, 3, 0)), "GPUs of one request give equal parts"},
		{"a GPU that is gone", allocated("a", result("gpu-c", 2, 0)), "it has a GPU that is not on this node: gpu-c"},
		{"another node", allocated("a", result(gpuA, 2, 0, func(r *resourceapi.DeviceRequestAllocationResult) { r.Pool = "node2" })), "of node node2, and this is node1"},
		{"two requests", allocated("a", result(gpuA, 2, 0), result(gpuB, 2, 0, func(r *resourceapi.DeviceRequestAllocationResult) { r.Request = "second" })), "several requests, gpu and second"},
		{"admin access", allocated("a", result(gpuA, 2, 0, func(r *resourceapi.DeviceRequestAllocationResult) { r.AdminAccess = new(true) })), "admin access"},
		{"no amount", allocated("a", result(gpuA, 2, 0, func(r *resourceapi.DeviceRequestAllocationResult) { r.ConsumedCapacity = nil })), "is DRAConsumableCapacity on"},
		{"no whole MiB", allocated("a", result(gpuA, 2, 0, func(r *resourceapi.DeviceRequestAllocationResult) {
			r.ConsumedCapacity["memory"] = resource.MustParse("1k")
		})), "1k of memory, which is not whole MiB"},
		{"no whole units", allocated("a", result(gpuA, 2, 0, func(r *resourceapi.DeviceRequestAllocationResult) {
			r.ConsumedCapacity["memory"] = resource.MustParse("1500Mi")
		})), "no whole units of 1024 MiB"},
		{"more cores than there are", allocated("a", result(gpuA, 2, 101)), "101 of the 100 per cent of cores"},
		{"parameters", withConfig, "it has parameters for gpumem.dev, which takes none"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, plugintest.TwoGPUs(), newMemory())
			got := r.one(t, test.claim)
			switch {
			case test.want == "" && got.Err != nil:
				t.Error(got.Err)
			case test.want != "" && (got.Err == nil || !strings.Contains(got.Err.Error(), test.want)):
				t.Errorf("error %v, want %q", got.Err, test.want)
			case test.want != "" && (len(r.disk.specs) > 0 || len(r.Claims()) > 0):
				t.Errorf("left of what was refused: %v, %v", r.disk.specs, r.Claims())
			}
		})
	}
}

func TestTheSumOnAGPUIsHeldTo(t *testing.T) {
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	if got := r.one(t, allocated("a", result(gpuA, 5, 60))); got.Err != nil {
		t.Fatal(got.Err)
	}
	for _, test := range []struct {
		name, want string
		claim      *resourceapi.ResourceClaim
	}{
		{"memory", "GPU 0 has 8192 MiB, 5120 of them prepared for other claims: 4096 more are too much", allocated("b", result(gpuA, 4, 0))},
		{"cores", "GPU 0 has 60 per cent of its cores prepared for other claims: 50 more are too much", allocated("b", result(gpuA, 1, 50))},
	} {
		if got := r.one(t, test.claim); got.Err == nil || !strings.Contains(got.Err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.name, got.Err, test.want)
		}
	}
	if got := r.one(t, allocated("b", result(gpuA, 3, 40))); got.Err != nil {
		t.Error(got.Err)
	}
	// A new allocation of a claim replaces the previous one.
	if got := r.one(t, allocated("a", result(gpuA, 4, 60))); got.Err != nil {
		t.Error(got.Err)
	}
	if got := r.disk.env(t, "uid-a")["GPUMEM_LIMIT_MIB"]; got != "4096" {
		t.Errorf("limit %s MiB", got)
	}
}

// A claim's file has the same content as the device plugin's answer for the same grant, at each level.
func TestAClaimGivesWhatTheDevicePluginGives(t *testing.T) {
	for _, test := range []struct {
		name     string
		level    gpu.Enforcement
		mps      bool
		strategy render.Strategy
		want     map[string]string
		mounts   []string
		devices  []string
	}{
		{name: "advisory", level: gpu.EnforcementAdvisory, strategy: render.Envvar,
			want: map[string]string{"GPUMEM_ENFORCEMENT": "advisory", "GPUMEM_LIMIT_MIB": "2048", "GPUMEM_CORE_PERCENT": "30", "NVIDIA_VISIBLE_DEVICES": string(plugintest.GPUB)}},
		{name: "mps", level: gpu.EnforcementMPS, mps: true, strategy: render.VolumeMounts,
			want:   map[string]string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30", "CUDA_MPS_PIPE_DIRECTORY": "/run/gpumem/mps/pipe", "NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
			mounts: []string{"/run/gpumem/mps/pipe ro", "/dev/shm rw", "/var/run/nvidia-container-devices/" + string(plugintest.GPUB) + " rw"}},
		{name: "mps by CDI", level: gpu.EnforcementMPS, mps: true, strategy: render.CDICRI,
			want:    map[string]string{"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M", "GPUMEM_ENFORCEMENT": "mps"},
			devices: []string{"nvidia.com/gpu=" + string(plugintest.GPUB)},
			mounts:  []string{"/run/gpumem/mps/pipe ro", "/dev/shm rw"}},
		{name: "kernel", level: gpu.EnforcementKernel, strategy: render.CDIAnnotations,
			want:    map[string]string{"NVIDIA_GPU_MEMORY_LIMIT": "2048", "NVIDIA_GPU_MEMORY_REQUEST": "2048", "GPUMEM_FRACTION": "0.9200"},
			devices: []string{"nvidia.com/gpu=" + string(plugintest.GPUB)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inv := plugintest.TwoGPUs()
			inv.Enforcement, inv.MPS = test.level, test.mps
			r := newRig(t, inv, newMemory())
			r.cfg.Containers.Strategy = test.strategy
			got := r.one(t, allocated("a", result(gpuB, 2, 30)))
			if got.Err != nil {
				t.Fatal(got.Err)
			}
			if diff := cmp.Diff(append([]string{"gpumem.dev/claim=uid-a"}, test.devices...), got.Devices[0].CDIDeviceIDs); diff != "" {
				t.Error(diff)
			}
			env := r.disk.env(t, "uid-a")
			for name, value := range test.want {
				if env[name] != value {
					t.Errorf("%s=%q, want %q", name, env[name], value)
				}
			}
			if diff := cmp.Diff(test.mounts, r.disk.mounts(t, "uid-a")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A claim keeps the level of its first preparation. The driver rejects calls while that level does not hold.
func TestAClaimKeepsItsLevel(t *testing.T) {
	inv := plugintest.TwoGPUs()
	inv.Enforcement, inv.MPS = gpu.EnforcementMPS, true
	r := newRig(t, inv, newMemory())
	r.ready = errors.New("the MPS daemon does not answer")
	claim := allocated("a", result(gpuA, 2, 0))
	if got := r.one(t, claim); got.Err == nil || !strings.Contains(got.Err.Error(), "claim a: the MPS daemon does not answer") {
		t.Errorf("error %v", got.Err)
	}
	r.ready = nil
	r.source.Set(func(inv *gpu.Inventory) { inv.Enforcement, inv.MPS = gpu.EnforcementAdvisory, false })
	if got := r.one(t, claim); got.Err != nil {
		t.Error(got.Err)
	}
	if got := r.disk.env(t, claim.UID)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]; got != "0=2048M" {
		t.Errorf("limit %q", got)
	}
}

// A claim that version 0.2 prepared for MPS protocol 3 is rejected at the next container start, and reported
// until it is unprepared.
func TestAClaimOfARetiredProtocol(t *testing.T) {
	inv := plugintest.TwoGPUs()
	inv.Enforcement, inv.MPS = gpu.EnforcementMPS, true
	r := newRig(t, inv, newMemory())
	claim := allocated("a", result(gpuA, 1, 0), result(gpuA, 1, 0))
	if got := r.one(t, claim); got.Err != nil {
		t.Fatal(got.Err)
	}
	if got := r.RetiredClients(inv, nil); len(got) > 0 {
		t.Errorf("clients %v", got)
	}
	r.disk.checkpoint = []byte(strings.ReplaceAll(string(r.disk.checkpoint), `"mps":2`, `"mps":3`))
	r = newRig(t, inv, r.disk)
	if diff := cmp.Diff(map[gpu.UUID][]string{plugintest.GPUA: {"ml/a"}}, r.RetiredClients(inv, nil)); diff != "" {
		t.Errorf("clients (-want +got):\n%s", diff)
	}
	if got := r.one(t, claim); got.Err == nil || !strings.Contains(got.Err.Error(), "protocol 3, which gpumem no longer runs: delete its pod") {
		t.Errorf("error %v", got.Err)
	}
	if err := r.undo(t, claim.UID); err != nil {
		t.Error(err)
	}
	if got := r.RetiredClients(inv, nil); len(got) > 0 {
		t.Errorf("clients after the claim was given back: %v", got)
	}
}

// A node recovers its claims from a checkpoint that is lost, unreadable or of another version.
func TestACheckpointIsRebuiltFromFilesAndClaims(t *testing.T) {
	for name, content := range map[string][]byte{"newer": []byte(`{"v":2,"claims":[]}`), "cut off": []byte(`{"v":1,"cla`), "empty": {}, "lost": nil} {
		t.Run(name, func(t *testing.T) {
			inv := plugintest.TwoGPUs()
			inv.Enforcement, inv.MPS = gpu.EnforcementMPS, true
			r := newRig(t, inv, newMemory())
			mine, both := allocated("mine", result(gpuA, 3, 20)), allocated("both", result(gpuA, 1, 0), result(gpuB, 1, 0))
			mine.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "uid-of-p"}}
			unprepared, foreign := allocated("unprepared", result(gpuB, 1, 0)), allocated("foreign")
			for _, claim := range []*resourceapi.ResourceClaim{mine, both, allocated("ended", result(gpuB, 2, 0))} {
				if got := r.one(t, claim); got.Err != nil {
					t.Fatal(got.Err)
				}
			}
			want := slices.DeleteFunc(r.Claims(), func(c Claim) bool { return c.Name == "ended" })
			r.disk.checkpoint = content
			failed := errors.New("connection refused")
			for _, err := range []error{failed, nil, errors.New("it is not asked again")} {
				read := func(context.Context) ([]*resourceapi.ResourceClaim, error) {
					return []*resourceapi.ResourceClaim{mine, both, unprepared, foreign, mine}, err
				}
				_, got := Recover(t.Context(), r.disk, read, domain, node, inv.UnitMiB, zap.NewNop())
				if (got != nil) != errors.Is(err, failed) {
					t.Fatalf("error %v where the API server answers %v", got, err)
				}
			}
			r = newRig(t, inv, r.disk)
			if diff := cmp.Diff(want, r.Claims()); diff != "" {
				t.Errorf("prepared (-before +after):\n%s", diff)
			}
			if err := r.Restore(); err != nil || len(r.disk.specs) != 2 {
				t.Errorf("CDI files: %v, %v", slices.Collect(maps.Keys(r.disk.specs)), err)
			}
			if content != nil && string(r.disk.aside) != string(content) {
				t.Errorf("set aside: %q", r.disk.aside)
			}
		})
	}
}

func TestSharesAreRebuiltFromFilesAndClaims(t *testing.T) {
	inv := plugintest.TwoGPUs()
	inv.UnitMiB = 0
	for i := range inv.Devices {
		inv.Devices[i].ShareMiB, inv.Devices[i].Allocatable = 800, 10
	}
	r := newRig(t, inv, newMemory())
	shares := func(n int64) func(*resourceapi.DeviceRequestAllocationResult) {
		return func(r *resourceapi.DeviceRequestAllocationResult) {
			r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"shares": *resource.NewQuantity(n, resource.DecimalSI)}
		}
	}
	claim := allocated("a", result(gpuA, 0, 0, shares(3)), result(gpuA, 0, 0, shares(1)))
	if got := r.one(t, claim); got.Err != nil {
		t.Fatal(got.Err)
	}
	want := r.Claims()
	r.disk.checkpoint = nil
	read := func(context.Context) ([]*resourceapi.ResourceClaim, error) {
		return []*resourceapi.ResourceClaim{claim}, nil
	}
	if _, err := Recover(t.Context(), r.disk, read, domain, node, 1024, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, newRig(t, inv, r.disk).Claims()); diff != "" {
		t.Errorf("prepared (-before +after):\n%s", diff)
	}
}

// On a full disk, the memory of an already prepared claim is not allocated again.
func TestAClaimThatCannotBeRecordedIsWhatItWas(t *testing.T) {
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	if got := r.one(t, allocated("a", result(gpuA, 5, 0))); got.Err != nil {
		t.Fatal(got.Err)
	}
	was := r.Claims()
	r.disk.dead = true
	if got := r.one(t, allocated("a", result(gpuA, 6, 0))); got.Err == nil {
		t.Error("a claim that is not recorded is prepared")
	}
	if got := r.one(t, allocated("b", result(gpuA, 1, 0))); got.Err == nil {
		t.Error("a claim that is not recorded is prepared")
	}
	if diff := cmp.Diff(was, r.Claims()); diff != "" {
		t.Errorf("prepared (-before +after):\n%s", diff)
	}
}

// After a reboot, the CDI files are gone, and the GPUs may have other indexes.
func TestFilesAreMadeAgainFromTheCheckpoint(t *testing.T) {
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	if got := r.one(t, allocated("a", result(gpuA, 2, 0))); got.Err != nil {
		t.Fatal(got.Err)
	}
	clear(r.disk.specs)
	r.disk.specs["uid-strange"] = []byte("{}")
	inv := plugintest.TwoGPUs()
	inv.Devices[0].UUID, inv.Devices[1].UUID = inv.Devices[1].UUID, inv.Devices[0].UUID
	r = newRig(t, inv, r.disk)
	if err := r.Restore(); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.disk.specs["uid-strange"]; ok {
		t.Error("a file without a claim is left")
	}
	if got := r.disk.env(t, "uid-a")["GPUMEM_GPU_INDEX"]; got != "1" {
		t.Errorf("index %q", got)
	}
}
