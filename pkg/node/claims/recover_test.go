package claims

import (
	"testing"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

func TestPreparedClaimsAreCounted(t *testing.T) {
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	for _, name := range []string{"a", "b"} {
		if got := r.one(t, allocated(name, result(gpuA, 1, 0))); got.Err != nil {
			t.Fatal(got.Err)
		}
	}
	r.disk.unreadable = true
	if _, err := Recover(t.Context(), r.disk, nil, domain, node, 1024, zap.NewNop()); err == nil || r.disk.aside != nil {
		t.Errorf("of a disk that cannot be read the error is %v, and %q is set aside", err, r.disk.aside)
	}
	r.disk.unreadable = false
	if prepared, err := Recover(t.Context(), r.disk, nil, domain, node, 1024, zap.NewNop()); err != nil || len(prepared) != 2 {
		t.Errorf("%d claims, want 2: %v", len(prepared), err)
	}
}
