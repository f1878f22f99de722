package plugin

import (
	"math"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

func TestUnitsOf(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		bytes, unitMiB int64
		want           gpu.Units
	}{
		{0, 1024, 0},
		{1, 1024, 1},
		{gib - 1, 1024, 1},
		{gib, 1024, 1},
		{gib + 1, 1024, 2},
		{gib, 256, 4},
		{math.MaxInt64, 1024, 1 << 33},
		{3 << 20, 0, 3}, // unitMiB is 0 before the cache has a node
	} {
		if got := unitsOf(tc.bytes, tc.unitMiB); got != tc.want {
			t.Errorf("%d bytes in units of %d MiB: %d units, want %d", tc.bytes, tc.unitMiB, got, tc.want)
		}
	}
}
