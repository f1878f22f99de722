package gpu

import "fmt"

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

// OutOfUse is the error that a GPU is not healthy. Why, people read by package reasons.
type OutOfUse struct{ Device Device }

func (e *OutOfUse) Error() string {
	return fmt.Sprintf("GPU %d (%s) is not healthy", e.Device.Index, e.Device.UUID)
}
