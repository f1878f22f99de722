// Package event defines the Kubernetes Events that gpumem records on pods and nodes.
//
// The tables in event.go define the reason and type of each Event. The table of Events in
// docs/reference.md is generated from them.
package event
