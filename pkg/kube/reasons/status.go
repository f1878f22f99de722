package reasons

import (
	"cmp"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Causes says why a GPU takes no new pods; it is empty where it takes them.
func Causes(s gpu.Status) string {
	var causes []string
	if s.Unhealthy {
		causes = append(causes, cmp.Or(s.Reason, "no reason given"))
	}
	if s.Stopped {
		causes = append(causes, "its device plugin is stopped or being replaced")
	}
	if s.Cordoned {
		causes = append(causes, "cordoned")
	}
	return strings.Join(causes, "; ")
}

// Status says the same in a word or two: healthy, cordoned, or unhealthy and why.
func Status(s gpu.Status) string {
	switch {
	case s.Open():
		return "healthy"
	case s.OnlyCordoned():
		return "cordoned"
	default:
		return "unhealthy (" + Causes(s) + ")"
	}
}
