package reasons

import (
	"cmp"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Causes renders the reasons why a GPU takes no new pods. The text is empty if the GPU is open
// (gpu.Status.Open).
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

// Status renders a status briefly: healthy, cordoned, or unhealthy with the causes.
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
