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
	if prepared, err := Recover(t.Context(), r.disk, nil, domain, node, 1024, zap.NewNop()); err != nil || len(prepared) != 2 {
		t.Errorf("%d claims, want 2: %v", len(prepared), err)
	}
}
