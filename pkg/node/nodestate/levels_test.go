package nodestate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Whatever the file of the process before says, what is handed out from then on is remembered.
func TestAnyFileOfLevels(t *testing.T) {
	slots := []gpu.SlotID{"aaaaaaaa-0"}
	for _, text := range []string{"", "{", "[]", "null", `{"aaaaaaaa-0":null}`, `{"aaaaaaaa-0":"kernel"}`} {
		file := filepath.Join(t.TempDir(), "levels.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		New(Config{Levels: file}, nil, nil, nil, zap.NewNop()).HandOut(slots, gpu.Inventory{Enforcement: gpu.EnforcementMPS})
		if got := New(Config{Levels: file}, nil, nil, nil, zap.NewNop()).LevelOfSlots(slots); got != gpu.EnforcementMPS {
			t.Errorf("after %q: level %q", text, got)
		}
	}
}

// The level record of version 0.2 has the protocol with each slot. Slots are clients no more once they are handed out again.
func TestRetiredClients(t *testing.T) {
	file := filepath.Join(t.TempDir(), "levels.json")
	record := `{"aaaaaaaa-0":{"level":"mps","mps":3},"aaaaaaaa-1":{"level":"kernel","mps":3},"bbbbbbbb-0":{"level":"mps","mps":2},"bbbbbbbb-1":{"level":"advisory"}}`
	if err := os.WriteFile(file, []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	n := New(Config{Levels: file}, nil, nil, nil, zap.NewNop())
	const first, second gpu.UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
	inv := gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{{UUID: first, Allocatable: 8}, {UUID: second, Index: 1, Allocatable: 8}}}
	held := map[string]string{
		"aaaaaaaa-0": "ml/three", "aaaaaaaa-1": "ml/three", "aaaaaaaa-2": "ml/unrecorded", "bbbbbbbb-0": "ml/two", "bbbbbbbb-1": "ml/advisory", "strange": "ml/strange",
	}
	want := map[gpu.UUID][]string{first: {"ml/three"}}
	if diff := cmp.Diff(want, n.RetiredClients(inv, held)); diff != "" {
		t.Errorf("clients (-want +got):\n%s", diff)
	}
	n.HandOut([]gpu.SlotID{"aaaaaaaa-0", "aaaaaaaa-1"}, gpu.Inventory{Enforcement: gpu.EnforcementMPS, MPS: true})
	if got := New(Config{Levels: file}, nil, nil, nil, zap.NewNop()).RetiredClients(inv, held); len(got) > 0 {
		t.Errorf("clients after the slots were handed out again: %v", got)
	}
}
