package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/node/inventory"
	"github.com/gpumem/gpumem/pkg/node/mps"
)

// TestDaemonsOfANodeWithInstances verifies that each daemon has its own devices, directory, limits and free
// memory.
func TestDaemonsOfANodeWithInstances(t *testing.T) {
	whole := mps.Config{Dir: "/mps", Shm: "/mps/shm", Exclusive: true}
	gpus := []inventory.Part{{UUID: "GPU-a", MiB: 40000, Closed: true}, {UUID: "GPU-b", Index: 1, MiB: 14910, Free: 14000}}
	instances := []inventory.Part{{UUID: "MIG-a", Index: 2, MiB: 4852, Free: 4000}, {UUID: "MIG-c", Index: 4, MiB: 9700, Free: 9000}}
	const a, b = "{GPU-a 0 40000 0 true}", "{GPU-b 1 14910 14000 false}"
	for name, tc := range map[string]struct {
		gpus, instances []inventory.Part
		lost            int
		want            []string
	}{
		"no instance":     {gpus, nil, 0, []string{"/mps true [" + a + " " + b + "] true <nil>"}},
		"one GPU is lost": {gpus[1:], nil, 1, []string{"/mps true [" + b + "] false <nil>"}},
		"instances alone": {gpus[:1], instances, 0, []string{
			"/mps/MIG-a false [{MIG-a 2 4852 4000 false}] false <nil>", "/mps/MIG-c false [{MIG-c 4 9700 9000 false}] false <nil>",
		}},
		"next to a GPU": {gpus, instances[:1], 0, []string{
			"/mps true [" + b + "] false <nil>", "/mps/MIG-a false [{MIG-a 2 4852 4000 false}] false <nil>",
		}},
	} {
		look := func() ([]inventory.Part, []inventory.Part, int, error) {
			return slices.Clone(tc.gpus), slices.Clone(tc.instances), tc.lost, nil
		}
		daemons := daemonsOf(whole, tc.gpus, tc.instances, look)
		var got []string
		for _, d := range daemons {
			list, all, err := d.GPUs()
			got = append(got, fmt.Sprint(d.Dir, " ", d.Exclusive, " ", list, " ", all, " ", err))
			if d.Shm != "/mps/shm" {
				t.Errorf("%s: %s has /dev/shm in %s", name, d.Dir, d.Shm)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	gone := func() ([]inventory.Part, []inventory.Part, int, error) { return gpus, nil, 0, nil }
	if _, _, err := daemonsOf(whole, nil, instances, gone)[0].GPUs(); err == nil {
		t.Error("an instance that is gone has a daemon")
	}
}
