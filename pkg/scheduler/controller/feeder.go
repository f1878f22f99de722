package controller

import (
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Feeder enters objects of the API server into a cache.
type Feeder struct {
	Log   *zap.Logger
	Names api.Names
	Cache *cache.Cache
}

// PodHandler returns a handler that enters pods. It must receive every pod that is not terminal.
func (b *Feeder) PodHandler() toolscache.ResourceEventHandler {
	return handle(func(before, pod *v1.Pod) {
		if before != nil && before.UID != pod.UID {
			b.removePod(before)
			before = nil
		}
		if before == nil {
			b.learn(pod)
		}
		b.setPod(pod)
	}, b.removePod)
}

// NodeHandler returns a handler that enters nodes.
func (b *Feeder) NodeHandler() toolscache.ResourceEventHandler {
	return handle(func(_, node *v1.Node) { b.setNode(node) }, func(node *v1.Node) { b.Cache.RemoveNode(node.Name) })
}

// handle returns a handler that calls set with the former state of an object, or nil, and with its present
// state. For a deleted object, it calls remove with the last known state.
func handle[T any](set func(before, after *T), remove func(*T)) toolscache.ResourceEventHandler {
	update := func(before, after any) {
		old, _ := before.(*T)
		if object, ok := after.(*T); ok {
			set(old, object)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(added any) { update(nil, added) },
		UpdateFunc: update,
		DeleteFunc: func(deleted any) {
			if missed, ok := deleted.(toolscache.DeletedFinalStateUnknown); ok {
				deleted = missed.Obj
			}
			if object, ok := deleted.(*T); ok {
				remove(object)
			}
		},
	}
}

func (b *Feeder) setPod(pod *v1.Pod) {
	switch {
	case api.Terminal(pod):
		b.removePod(pod)
		return
	case !b.Names.Holds(pod):
		b.setOther(pod)
		return
	case pod.Spec.NodeName == "":
		b.nominate(pod)
		return
	}
	holding, err := b.Names.Holding(pod)
	if err != nil {
		b.Log.Warn("pod cannot be read in full",
			zap.Stringer("pod", holding.Pod), zap.String("uid", holding.Pod.UID),
			zap.String("node", pod.Spec.NodeName), zap.Error(err))
	}
	if !holding.Request.Empty() {
		b.Cache.AddPod(pod.Spec.NodeName, holding)
	}
}

func (b *Feeder) removePod(pod *v1.Pod) { b.Cache.RemovePod(string(pod.UID)) }

// setOther enters a pod without GPU memory, because its CPU is part of the node's requested CPU.
func (b *Feeder) setOther(pod *v1.Pod) {
	if cpu := api.CPU(pod); pod.Spec.NodeName != "" && cpu > 0 {
		b.Cache.AddPod(pod.Spec.NodeName, placement.Holding{Pod: api.Ref(pod), Request: placement.Request{CPU: cpu}, Admitted: true})
	}
}

// learn enters the request of a new pod into the statistics of requests (ranking.Mix). After a restart, all
// pods are new.
func (b *Feeder) learn(pod *v1.Pod) {
	if !b.Names.Holds(pod) || api.Terminal(pod) {
		return
	}
	if req, err := b.Names.Request(pod); err == nil {
		b.Cache.Learn(req)
	}
}

// nominate enters the nomination of a waiting pod. A pod with an unreadable request gets no nomination.
func (b *Feeder) nominate(pod *v1.Pod) {
	req, err := b.Names.Request(pod)
	node, at, until := api.Nomination(pod, req, time.Now())
	if err != nil || req.Empty() {
		node = ""
	}
	b.Cache.NominatePod(node, api.Ref(pod), req, at, until)
}

func (b *Feeder) setNode(node *v1.Node) {
	inv, err := b.Names.InventoryOf(node)
	if err != nil {
		b.Log.Warn("node cannot be read; it counts as having no GPUs", zap.String("node", node.Name), zap.Error(err))
		inv = gpu.Inventory{}
	}
	inv.CPU = node.Status.Allocatable.Cpu().MilliValue()
	b.Cache.SetNode(node.Name, inv)
}
