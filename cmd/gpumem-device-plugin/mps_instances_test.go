package main

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/nvml"
)

// TestDaemonsOfANodeWithInstances: each has its own devices, folder, limits and free memory.
func TestDaemonsOfANodeWithInstances(t *testing.T) {
	whole := mps.Config{Dir: "/mps", Shm: "/mps/shm", Exclusive: true, Settings: mps.Settings{PinnedMiB: []int64{40000, 14910}}}
	gpus := []nvml.Part{{UUID: "GPU-b", Index: 1, MiB: 14910, Free: 14000}}
	instances := []nvml.Part{{UUID: "MIG-a", Index: 2, MiB: 4852, Free: 4000}, {UUID: "MIG-c", Index: 4, MiB: 9700, Free: 9000}}
	free := func(parts []nvml.Part) (out []int64, err error) {
		for _, p := range parts {
			out = append(out, p.Free)
		}
		return out, nil
	}
	for name, tc := range map[string]struct {
		gpus, instances []nvml.Part
		want            []string
	}{
		"no instance": {gpus, nil, []string{"/mps true [] [] [40000 14910]"}},
		"instances alone": {nil, instances, []string{
			"/mps/MIG-a false [MIG-a] [2] [4852] [4000]", "/mps/MIG-c false [MIG-c] [4] [9700] [9000]",
		}},
		"next to a GPU": {gpus, instances[:1], []string{"/mps true [GPU-b] [1] [14910] [14000]", "/mps/MIG-a false [MIG-a] [2] [4852] [4000]"}},
	} {
		var got []string
		for _, d := range daemonsOf(whole, tc.gpus, tc.instances, free) {
			line := fmt.Sprint(d.Dir, " ", d.Exclusive, " ", d.Only, " ", d.Indexes, " ", d.Settings.PinnedMiB)
			if d.Free != nil {
				has, _ := d.Free()
				line += fmt.Sprint(" ", has)
			}
			got = append(got, line)
			if d.Shm != "/mps/shm" {
				t.Errorf("%s: %s has /dev/shm in %s", name, d.Dir, d.Shm)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
