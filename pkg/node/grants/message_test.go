package grants

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// a100 returns a UUID in NVML's format with the given first digits.
func a100(first string) gpu.UUID {
	digits := (first + "5e1d0c3b9a8f7e6d5c4b3a2918070605")[:32]
	return gpu.UUID("GPU-" + digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:])
}

func a100s(devices ...gpu.Device) gpu.Inventory {
	for i := range devices {
		devices[i].Index = i
	}
	return gpu.Inventory{UnitMiB: 1024, Devices: devices}
}

func mustSlots(t testing.TB, inv gpu.Inventory) *gpu.Slots {
	t.Helper()
	s, err := gpu.NewSlots(inv)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// message returns the plugin's message to the kubelet with every slot unhealthy.
func message(s *gpu.Slots, inv gpu.Inventory) *pluginapi.ListAndWatchResponse {
	var out pluginapi.ListAndWatchResponse
	for _, d := range inv.Devices {
		for _, id := range s.Of(gpu.Memory, d.UUID) {
			out.Devices = append(out.Devices, &pluginapi.Device{ID: string(id), Health: pluginapi.Unhealthy})
		}
	}
	return &out
}

// The device plugin uses listSize to reject a configuration, so it must be exact.
func TestListSizeIsThatOfTheMessage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	cases := []gpu.Inventory{
		a100s(),
		a100s(gpu.Device{UUID: a100("a1b2c3d4")}),
		a100s(gpu.Device{UUID: a100("a1b2c3d4"), Allocatable: -1}),
		a100s(gpu.Device{UUID: a100("a1b2c3d4"), Allocatable: 81559}),
		a100s(gpu.Device{UUID: a100("a1b2c3d400"), Allocatable: 141}, gpu.Device{UUID: a100("a1b2c3d401"), Allocatable: 99}),
	}
	for _, n := range []gpu.Units{1, 9, 10, 11, 99, 100, 101, 999, 1000, 1001} {
		cases = append(cases, a100s(gpu.Device{UUID: a100("a1b2c3d4"), Allocatable: n}))
	}
	for range 20 {
		var devices []gpu.Device
		for range random.IntN(9) {
			devices = append(devices, gpu.Device{UUID: a100(fmt.Sprintf("%08x", random.Uint32())), Allocatable: gpu.Units(random.IntN(12000))})
		}
		cases = append(cases, a100s(devices...))
	}
	for _, inv := range cases {
		s := mustSlots(t, inv)
		if got, want := listSize(inv, s), proto.Size(message(s, inv)); got != want {
			t.Errorf("listSize() = %d, want %d, for %+v", got, want, inv.Devices)
		}
	}
}

// Because of these numbers, each node has a configurable unit, and the unit is not 1 MiB.
func TestWhichUnitsTheKubeletCanReceive(t *testing.T) {
	tests := map[string]struct {
		gpus     int
		mib      int64
		unit     int64
		wantFits bool
	}{
		"1 × T4 in MiB":           {1, 15360, 1, true},
		"1 × H100 80 GB in MiB":   {1, 81559, 1, true},
		"8 × A100 40 GB in MiB":   {8, 40960, 1, false},
		"8 × H100 80 GB in MiB":   {8, 81559, 1, false},
		"8 × H100 in 256 MiB":     {8, 81559, 256, true},
		"8 × H200 141 GB in GiB":  {8, 143771, 1024, true},
		"16 × H200 141 GB in GiB": {16, 143771, 1024, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			inv := gpu.Inventory{UnitMiB: tc.unit}
			for i := range tc.gpus {
				inv.Devices = append(inv.Devices, gpu.Device{
					UUID: a100(fmt.Sprintf("%08x", i)), Index: i, MemoryMiB: tc.mib, Allocatable: gpu.UnitsIn(tc.mib, 0, tc.unit),
				})
			}
			s := mustSlots(t, inv)
			if got := listSize(inv, s) <= messageLimit; got != tc.wantFits {
				t.Errorf("a message of %d bytes fits: %t, want %t", listSize(inv, s), got, tc.wantFits)
			}
			smallest := smallestUnit(slices.Repeat([]int64{tc.mib}, tc.gpus), messageLimit)
			if (smallest <= tc.unit) != tc.wantFits {
				t.Errorf("smallestUnit = %d MiB, but %d MiB fits: %t", smallest, tc.unit, tc.wantFits)
			}
		})
	}
}

func TestSmallestUnitIsTheSmallest(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		var usable []int64
		for range 1 + random.IntN(4) {
			usable = append(usable, random.Int64N(3000)-100)
		}
		limit := random.IntN(20000) - 500
		want := int64(1)
		for ; bruteSize(t, usable, want) > max(0, limit); want++ {
		}
		if got := smallestUnit(usable, limit); got != want {
			t.Fatalf("smallestUnit(%v, %d) = %d, want %d", usable, limit, got, want)
		}
	}
}

func bruteSize(t *testing.T, usable []int64, unit int64) int {
	inv := gpu.Inventory{UnitMiB: unit}
	for i, mib := range usable {
		inv.Devices = append(inv.Devices, gpu.Device{UUID: a100(fmt.Sprintf("%08x", i)), Allocatable: gpu.UnitsIn(mib, 0, unit)})
	}
	s := mustSlots(t, inv)
	return proto.Size(message(s, inv))
}

func TestSmallestUnitOfAnything(t *testing.T) {
	for _, usable := range [][]int64{nil, {0}, {-1, math.MinInt64}, {math.MaxInt64}, {math.MaxInt64, math.MaxInt64}} {
		for _, limit := range []int{math.MinInt, -1, 0, 1, messageLimit, math.MaxInt} {
			if got := smallestUnit(usable, limit); got < 1 {
				t.Errorf("smallestUnit(%v, %d) = %d, want 1 or more", usable, limit, got)
			}
		}
	}
}
