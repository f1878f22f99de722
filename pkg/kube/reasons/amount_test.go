package reasons

import (
	"math"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

func TestAmount(t *testing.T) {
	tests := map[string]struct {
		units gpu.Units
		unit  int64
		want  string
	}{
		"GiB":                             {3, 1024, "3 GiB"},
		"units of several GiB":            {3, 2048, "6 GiB"},
		"MiB":                             {3, 256, "768 MiB"},
		"more than a GiB, and not whole":  {3, 1536, "4608 MiB"},
		"shares":                          {3, 0, "3 shares"},
		"one share":                       {1, 0, "1 share"},
		"what would overflow is the most": {math.MaxInt64, 2048, "9223372036854775807 GiB"},
		"the most of units of one":        {math.MaxInt64, 1, "9223372036854775807 MiB"},
		"the most that does not overflow": {math.MaxInt64 / 2, 2048, "9223372036854775806 GiB"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Amount(tc.units, tc.unit); got != tc.want {
				t.Errorf("Amount(%d, %d) = %q, want %q", tc.units, tc.unit, got, tc.want)
			}
		})
	}
}
