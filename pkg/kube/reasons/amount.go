package reasons

import (
	"fmt"
	"math"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Amount renders an amount of memory: in GiB if the unit is a whole number of GiB ("3 GiB"), else in MiB
// ("768 MiB"), or in shares if the unit is 0.
func Amount(u gpu.Units, unitMiB int64) string {
	n, suffix := scale(u, unitMiB)
	return fmt.Sprintf("%d %s", n, suffix)
}

// Number returns the number in Amount, without its unit.
func Number(u gpu.Units, unitMiB int64) int64 {
	n, _ := scale(u, unitMiB)
	return n
}

// scale converts an amount to the unit that Amount prints, and returns the unit's name. It limits the
// result to the range of int64.
func scale(u gpu.Units, unitMiB int64) (n int64, suffix string) {
	factor, suffix := unitMiB, "MiB"
	if unitMiB == 0 {
		return int64(u), map[bool]string{true: "share", false: "shares"}[u == 1]
	}
	if unitMiB%1024 == 0 {
		factor, suffix = unitMiB/1024, "GiB"
	}
	if factor > 0 && int64(u) > math.MaxInt64/factor {
		return math.MaxInt64, suffix
	}
	return int64(u) * factor, suffix
}

// Slots renders a number of slots of a resource, on a node with the given unit.
func Slots(r gpu.Resource, slots int, unitMiB int64) string {
	if r == gpu.Cores {
		return fmt.Sprintf("%d%% of cores", slots)
	}
	return Amount(gpu.Units(slots), unitMiB)
}

func renderShortage(s *placement.Short) string {
	amount := Slots(s.Resource, s.Slots, s.UnitMiB)
	if s.Pod == (placement.PodRef{}) {
		return fmt.Sprintf("the pod's init containers use GPU %v, which has no %s free for the next container", s.Devices, amount)
	}
	return fmt.Sprintf("pod %s needs %s on GPU %v, and the kubelet has less left", s.Pod, amount, s.Devices)
}
