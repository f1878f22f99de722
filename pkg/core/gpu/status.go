package gpu

import "fmt"

// Status is whether a GPU takes new pods, and what keeps them off. The zero value takes
// them. Two are compared with ==. Reason is for people: no program reads it.
type Status struct {
	Unhealthy bool   `json:"unhealthy,omitempty"` // it has failed, or is another's
	Cordoned  bool   `json:"cordoned,omitempty"`  // people keep new pods off
	Stopped   bool   `json:"stopped,omitempty"`   // its node's device plugin has ended
	ByClaims  bool   `json:"byClaims,omitempty"`  // claims are what it is handed out by: no pod gets any of it by the extended resource
	Reason    string `json:"reason,omitempty"`    // why it is unhealthy; may be empty
}

// Unhealthy is the status of a GPU that has failed, and why.
func Unhealthy(reason string) Status { return Status{Unhealthy: true, Reason: reason} }

// Works reports whether the GPU is healthy, and what hands it out runs.
func (s Status) Works() bool { return !s.Unhealthy && !s.Stopped }

// Open reports whether new pods may come to the GPU, be it by claims.
func (s Status) Open() bool { return s.Works() && !s.Cordoned }

// TakesPods reports whether new pods may come to the GPU by the extended resource.
func (s Status) TakesPods() bool { return s.Open() && !s.ByClaims }

// OnlyCordoned reports whether a cordon is all that keeps new pods off the GPU.
func (s Status) OnlyCordoned() bool { return s.Cordoned && s.Works() }

// OutOfUse is the error that a GPU is not healthy. Why, people read by package reasons.
type OutOfUse struct{ Device Device }

func (e *OutOfUse) Error() string {
	return fmt.Sprintf("GPU %d (%s) is not healthy", e.Device.Index, e.Device.UUID)
}
