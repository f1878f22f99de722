package allocation

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// A pod that no scheduler placed gets no cordoned GPU. A pod that a scheduler placed there gets its slots.
func TestCordonedGPUGetsNoUnplacedPod(t *testing.T) {
	inv := inventory(4, 8)
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		t.Fatal(err)
	}
	available := append(ids(0, 0, 1, 2, 3), ids(1, 0, 1, 2, 3, 4, 5, 6, 7)...)
	prefer := func(p Pod, cordoned ...gpu.UUID) ([]gpu.SlotID, error) {
		inv := inv
		inv.Devices = slices.Clone(inv.Devices)
		for i, d := range inv.Devices {
			inv.Devices[i].Status.Cordoned = slices.Contains(cordoned, d.UUID)
		}
		s := State{Inventory: inv, Slots: slots, Pods: []Pod{p}, Policy: placement.Binpack, PlaceUnassigned: true}
		return Prefer(s, gpu.Memory, available, nil, 3)
	}
	want := func(p Pod, device int, cordoned ...gpu.UUID) {
		t.Helper()
		got, err := prefer(p, cordoned...)
		if diff := cmp.Diff(ids(device, 0, 1, 2), got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	unplaced, placed := pod("p", ask(app("c", 3))), pod("p", ask(app("c", 3)), 0)
	want(unplaced, 0)
	want(unplaced, 1, uuid(0))
	want(placed, 0, uuid(0))
	if _, err := prefer(unplaced, uuid(0), uuid(1)); err == nil || !strings.Contains(reasons.Error(err), "GPU0 cordoned, GPU1 cordoned") {
		t.Errorf("with both cordoned: %v", err)
	}
}
