package gpu

import "fmt"

// Status records whether a GPU takes new pods, and the reasons against it. The zero value takes pods.
// Statuses can be compared with ==. Programs do not parse Reason.
type Status struct {
	Unhealthy bool   `json:"unhealthy,omitempty"` // the GPU failed, or other software uses it
	Cordoned  bool   `json:"cordoned,omitempty"`  // an administrator keeps new pods off
	Stopped   bool   `json:"stopped,omitempty"`   // the device plugin of its node has stopped
	ByClaims  bool   `json:"byClaims,omitempty"`  // pods get the GPU only by claims, not by the extended resource
	Reason    string `json:"reason,omitempty"`    // why the GPU is unhealthy; may be empty
}

// Unhealthy returns the status of a failed GPU.
func Unhealthy(reason string) Status { return Status{Unhealthy: true, Reason: reason} }

// Works reports whether the GPU is healthy and its device plugin runs.
func (s Status) Works() bool { return !s.Unhealthy && !s.Stopped }

// Open reports whether the GPU takes new pods that request the extended resource or claims.
func (s Status) Open() bool { return s.Works() && !s.Cordoned }

// TakesPods reports whether the GPU takes new pods by the extended resource.
func (s Status) TakesPods() bool { return s.Open() && !s.ByClaims }

// OnlyCordoned reports whether a cordon is the only reason why the GPU takes no new pods.
func (s Status) OnlyCordoned() bool { return s.Cordoned && s.Works() }

// OutOfUse is the error for an allocation on a device that is not advertised. Package reasons renders it.
type OutOfUse struct{ Device Device }

func (e *OutOfUse) Error() string {
	return fmt.Sprintf("GPU %d (%s) is not healthy", e.Device.Index, e.Device.UUID)
}
