// Package pagetest builds fleets for tests of the page.
package pagetest

import (
	"strings"
	"time"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// World is a cache with the facts for a page. Tests fill it.
type World struct {
	*cache.Cache
	Waiting []inspect.WaitFacts
	Known   map[string]inspect.NodeFacts // by name
	Used    map[gpu.UUID]int64           // MiB
}

// NewWorld returns a world without nodes.
func NewWorld() *World {
	return &World{Cache: cache.New(), Known: make(map[string]inspect.NodeFacts)}
}

// Facts returns the facts about nodes, and the waiting pods.
func (w *World) Facts([]placement.Node) inspect.Facts {
	return inspect.Facts{Resource: "gpumem.dev/gpu-mem", Nodes: w.Known, Waiting: w.Waiting}
}

// Asks returns the request of a pod with one container.
func Asks(units gpu.Units) placement.Request {
	return placement.Request{Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: units})}
}

// Offer adds a node with GPUs of the given sizes in GiB.
func (w *World) Offer(name, model string, gib ...int) {
	inv := kubetest.Inventory(name, gib...)
	inv.DriverVersion, inv.Enforcement = "", ""
	for i := range inv.Devices {
		inv.Devices[i].Model = model
	}
	w.SetNode(name, inv)
}

// Started is the time at which the kubelet admitted all pods.
var Started = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Place adds a pod, named namespace/name, to GPU i of a node.
func (w *World) Place(name, node string, i int, units gpu.Units) {
	namespace, short, _ := strings.Cut(name, "/")
	w.AddPod(node, placement.Holding{
		Pod: placement.PodRef{Namespace: namespace, Name: short, UID: name}, Request: Asks(units), Admitted: true, Started: Started,
		Assignment: placement.Assignment{Shares: []placement.Share{{Device: kubetest.UUID(node, i), Units: units}}},
	})
}

// Wait adds a waiting pod, named namespace/name.
func (w *World) Wait(name string, units gpu.Units) {
	namespace, short, _ := strings.Cut(name, "/")
	w.Waiting = append(w.Waiting, inspect.WaitFacts{Pod: placement.PodRef{Namespace: namespace, Name: short, UID: name}, Request: Asks(units)})
}
