package nodestate

import (
	"os"
	"path/filepath"
	"testing"

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
