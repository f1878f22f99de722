// Package event defines the Kubernetes Events that gpumem records on pods and nodes.
//
// The tables in event.go are the only place where an Event's reason and type are defined. The table of Events in
// docs/reference.md is made of them.
package event
