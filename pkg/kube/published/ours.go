package published

import (
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// The capacities of our devices, which claims share.
const (
	CapacityMemory = "memory" // in bytes
	CapacityCores  = "cores"  // per cent
)

// DeviceName returns the name of a GPU of ours in the pool of its node.
func DeviceName(id gpu.UUID) string { return strings.ToLower(string(id)) }
