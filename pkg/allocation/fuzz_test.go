package allocation

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// slotsOf reads IDs with commas between them.
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

// state is a node with two GPUs, the second of which may be broken, a pod that
// holds what the fuzzer says and two that wait.
func fuzzedState(t *testing.T, held string, broken bool) State {
	t.Helper()
	c := newCluster(t, 1, inventory(5, 12))
	c.inv.Devices[1].Healthy = !broken
	c.pods = []Pod{pod("a", ask(app("a", 2))), pod("b", ask(app("a", 2)), 1), pod("c", ask(initial("i", 3), app("a", 1)), 0)}
	s := c.state()
	slots, err := gpu.NewSlots(c.inv)
	if err != nil {
		t.Fatal(err)
	}
	s.Slots = slots
	if ids := slotsOf(held); len(ids) > 0 {
		s.Held = append(s.Held, Held{Namespace: "ns", Name: "a", Container: "a", Slots: ids})
	}
	return s
}

// FuzzResolve: IDs are granted when each is a healthy GPU's, none is named twice
// and all GPUs have as many; then the grant says just that.
func FuzzResolve(f *testing.F) {
	f.Add("00000000-0,00000000-1", false)
	f.Add("00000000-0,00000001-0", false)
	f.Add("00000000-0,00000001-0,00000001-1", false)
	f.Add("00000001-11", true)
	f.Add("00000000-0,00000000-0", false)
	f.Add("GPU-00000000-_-1,-,", false)
	f.Fuzz(func(t *testing.T, list string, broken bool) {
		s, ids := fuzzedState(t, "", broken), slotsOf(list)
		perGPU := make(map[gpu.UUID]int)
		good := len(ids) > 0
		for i, id := range ids {
			d, err := s.Slots.Device(id)
			good = good && err == nil && d.Healthy && !slices.Contains(ids[:i], id)
			perGPU[d.UUID]++
		}
		for _, n := range perGPU {
			good = good && n*len(perGPU) == len(ids)
		}
		grant, err := Resolve(s, ids)
		if good != (err == nil) {
			t.Fatalf("%q: %v, want an error: %t", ids, err, !good)
		}
		if err != nil {
			return
		}
		if len(grant.Devices) != len(perGPU) || int(grant.Units)*len(perGPU) != len(ids) {
			t.Fatalf("%q: granted %d units of %v", ids, grant.Units, grant.Devices)
		}
		_ = Admit(s, grant) // it may refuse, and does not panic
		_, _ = Find(s.Held, ids)
	})
}

// FuzzPrefer: whatever the kubelet offers and has given away, what is preferred
// is as much as it asks for, all of it offered and all that it insists on, each
// once, and of one GPU for pods of one.
func FuzzPrefer(f *testing.F) {
	f.Add("00000000-0,00000000-1,00000001-0,00000001-1", "", "", 2, false)
	f.Add("00000001-0,00000001-1,x,00000001-1", "00000001-1", "00000000-3", 3, false)
	f.Add("", "00000000-9", "GPU-00000000-_-1", 1, true)
	f.Add("00000000-0", "", "", -1, true)
	f.Fuzz(func(t *testing.T, offered, insisted, held string, size int, broken bool) {
		s, available, must := fuzzedState(t, held, broken), slotsOf(offered), slotsOf(insisted)
		got, err := Prefer(s, available, must, size)
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
