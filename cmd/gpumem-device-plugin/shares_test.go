package main

import (
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/nodepods"
)

// A node keeps the unit of the pods that it has, and says how to end that.
func TestTheUnitOfANodeWithPods(t *testing.T) {
	offered := func(unitMiB int64) gpu.Inventory {
		return gpu.Inventory{UnitMiB: unitMiB, Devices: []gpu.Device{{UUID: "GPU-0"}}}
	}
	for name, tc := range map[string]struct {
		seen nodepods.Seen
		want int64
	}{
		"the same unit":                {nodepods.Seen{Offered: offered(512), Holders: []string{"ml/a"}}, 512},
		"another unit":                 {nodepods.Seen{Offered: offered(1024), Holders: []string{"ml/a", "ml/b"}}, 1024},
		"another unit, without pods":   {nodepods.Seen{Offered: offered(1024)}, 512},
		"shares":                       {nodepods.Seen{Offered: offered(0), Holders: []string{"ml/a"}}, 512},
		"nothing was offered":          {nodepods.Seen{Offered: gpu.Inventory{UnitMiB: 1024}, Holders: []string{"ml/a"}}, 512},
		"the API server does not tell": {nodepods.Seen{}, 512},
	} {
		var c config
		c.unitMiB = 512
		c = c.chooseUnits(zap.NewNop(), tc.seen)
		if c.unitMiB != tc.want || c.otherUnit != (tc.want != 512) {
			t.Errorf("%s: unit %d, another: %t; want %d", name, c.unitMiB, c.otherUnit, tc.want)
		}
		const said = "unitMiB is 512 now, and the node keeps units of 1024 MiB and takes no new pods, because pods have such units: ml/a, ml/b. Drain the node, or set unitMiB back to 1024."
		if c.otherUnit && c.unchanged != said || !c.otherUnit && c.unchanged != "" {
			t.Errorf("%s: it says %q", name, strings.TrimSpace(c.unchanged))
		}
	}
}
