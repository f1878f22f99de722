package allocation

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// slotsOf parses comma-separated IDs.
func slotsOf(list string) []gpu.SlotID {
	var out []gpu.SlotID
	if list == "" {
		return nil
	}
	for id := range strings.SplitSeq(list, ",") {
		out = append(out, gpu.SlotID(id))
	}
	return out
}

// fuzzedState returns a node with two GPUs, one possibly broken, a pod with the given slots, and two waiting
// pods.
func fuzzedState(t *testing.T, held string, broken bool) State {
	t.Helper()
	c := newCluster(t, 1, inventory(5, 12))
	c.inv.Devices[1].Status.Unhealthy = broken
	half := app("a", 2)
	half.Cores = 50
	c.pods = []Pod{pod("a", ask(half)), pod("b", ask(app("a", 2)), 1), pod("c", ask(initial("i", 3), app("a", 1)), 0)}
	s := c.state()
	slots, err := gpu.NewSlots(c.inv)
	if err != nil {
		t.Fatal(err)
	}
	s.Slots = slots
	if ids := slotsOf(held); len(ids) > 0 {
		s.Allocated = append(s.Allocated, Allocated{Namespace: "ns", Name: "a", Container: "a", Slots: ids})
	}
	return s
}

// FuzzResolve verifies that Resolve accepts IDs if each ID belongs to a healthy GPU, no ID is repeated, and all
// GPUs have the same number of IDs. The grant then matches the IDs.
func FuzzResolve(f *testing.F) {
	f.Add("00000000-0,00000000-1", false, false)
	f.Add("00000000-0,00000001-0", false, false)
	f.Add("00000000-0,00000001-0,00000001-1", false, false)
	f.Add("00000001-11", false, true)
	f.Add("00000000-0,00000000-0", false, false)
	f.Add("00000000-c0,00000000-c99", true, false)
	f.Add("00000000-c0,00000000-1", true, false)
	f.Add("GPU-00000000-_-1,-,", false, false)
	f.Fuzz(func(t *testing.T, list string, cores, broken bool) {
		s, ids, resource := fuzzedState(t, "", broken), slotsOf(list), gpu.Memory
		if cores {
			resource = gpu.Cores
		}
		perGPU := make(map[gpu.UUID]int)
		good := len(ids) > 0
		for i, id := range ids {
			d, err := s.Slots.Device(id)
			good = good && err == nil && d.Status.TakesPods() && id.Resource() == resource && !slices.Contains(ids[:i], id)
			perGPU[d.UUID]++
		}
		for _, n := range perGPU {
			good = good && n*len(perGPU) == len(ids)
		}
		grant, err := Resolve(s, resource, ids)
		if good != (err == nil) {
			t.Fatalf("%q: %v, want an error: %t", ids, err, !good)
		}
		if err != nil {
			return
		}
		if len(grant.Devices) != len(perGPU) || grant.SlotsPerDevice*len(perGPU) != len(ids) {
			t.Fatalf("%q: granted %d slots each of %v", ids, grant.SlotsPerDevice, grant.Devices)
		}
		_, _ = Admit(s, grant) // may return an error, but must not panic
	})
}

// FuzzPrefer verifies the preferred IDs for any available IDs: they have the requested number, are available,
// include all required IDs, contain no ID twice, and are on one GPU for a pod with one GPU.
func FuzzPrefer(f *testing.F) {
	f.Add("00000000-0,00000000-1,00000001-0,00000001-1", "", "", 2, false, false)
	f.Add("00000001-0,00000001-1,x,00000001-1", "00000001-1", "00000000-3", 3, false, false)
	f.Add("", "00000000-9", "GPU-00000000-_-1", 1, false, true)
	f.Add("00000000-c0,00000001-c1", "", "00000001-0,00000001-1", 1, true, false)
	f.Add("00000000-0", "", "", -1, false, true)
	f.Fuzz(func(t *testing.T, offered, insisted, held string, size int, cores, broken bool) {
		s, available, must, resource := fuzzedState(t, held, broken), slotsOf(offered), slotsOf(insisted), gpu.Memory
		if cores {
			resource = gpu.Cores
		}
		got, err := Prefer(s, resource, available, must, size)
		_ = Reconcile(s)
		if err != nil {
			return
		}
		gpus := make(map[gpu.UUID]bool)
		for i, id := range got {
			d, unknown := s.Slots.Device(id)
			if unknown != nil || slices.Contains(got[:i], id) || !slices.Contains(available, id) {
				t.Fatalf("%q of %q: %q, %v", got, available, id, unknown)
			}
			gpus[d.UUID] = true
		}
		for _, id := range must {
			if !slices.Contains(got, id) {
				t.Fatalf("%q lacks %q of %q", got, id, must)
			}
		}
		if len(got) != size || len(must) == 0 && len(gpus) != 1 {
			t.Fatalf("%q: want %d IDs of one GPU", got, size)
		}
	})
}
