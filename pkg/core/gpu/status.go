package gpu

import (
	"cmp"
	"strings"
)

// Status is whether a GPU takes new pods, and what keeps them off. The zero value takes
// them. Two are compared with ==. Reason is for people: no program reads it.
type Status struct {
	Unhealthy bool   `json:"unhealthy,omitempty"` // it has failed, or is another's
	Cordoned  bool   `json:"cordoned,omitempty"`  // people keep new pods off
	Stopped   bool   `json:"stopped,omitempty"`   // its node's device plugin has ended
	Reason    string `json:"reason,omitempty"`    // why it is unhealthy; may be empty
}

// Unhealthy is the status of a GPU that has failed, and why.
func Unhealthy(reason string) Status { return Status{Unhealthy: true, Reason: reason} }

// TakesPods reports whether new pods may come to the GPU.
func (s Status) TakesPods() bool { return !s.Unhealthy && !s.Cordoned && !s.Stopped }

// OnlyCordoned reports whether a cordon is all that keeps new pods off the GPU.
func (s Status) OnlyCordoned() bool { return s.Cordoned && !s.Unhealthy && !s.Stopped }

// Causes says for people why the GPU takes no new pods; it is empty where it takes them.
func (s Status) Causes() string {
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

// String says the same in a word or two: healthy, cordoned, or unhealthy and why.
func (s Status) String() string {
	switch {
	case s.TakesPods():
		return "healthy"
	case s.OnlyCordoned():
		return "cordoned"
	default:
		return "unhealthy (" + s.Causes() + ")"
	}
}
