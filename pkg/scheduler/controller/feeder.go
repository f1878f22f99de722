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
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { b.learn(obj); b.setPod(obj) },
		UpdateFunc: func(before, after any) {
			old, wasPod := before.(*v1.Pod)
			if pod, isPod := after.(*v1.Pod); wasPod && isPod && old.UID != pod.UID {
				b.removePod(old)
				b.learn(pod)
			}
			b.setPod(after)
		},
		DeleteFunc: func(obj any) { b.removePod(last(obj)) },
	}
}

// NodeHandler returns a handler that enters nodes.
func (b *Feeder) NodeHandler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    b.setNode,
		UpdateFunc: func(_, after any) { b.setNode(after) },
		DeleteFunc: func(obj any) {
			if node, ok := last(obj).(*v1.Node); ok {
				b.Cache.RemoveNode(node.Name)
			}
		},
	}
}

// last returns the deleted object. If the watch missed the deletion, this is the last known state.
func last(obj any) any {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		return gone.Obj
	}
	return obj
}

func (b *Feeder) setPod(obj any) {
	pod, ok := obj.(*v1.Pod)
	switch {
	case !ok:
		return
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

// setOther enters a pod without GPU memory, because its CPU is part of the node's requested CPU.
func (b *Feeder) setOther(pod *v1.Pod) {
	if cpu := api.CPU(pod); pod.Spec.NodeName != "" && cpu > 0 {
		b.Cache.AddPod(pod.Spec.NodeName, placement.Holding{Pod: api.Ref(pod), Request: placement.Request{CPU: cpu}, Admitted: true})
	}
}

// learn enters the request of a new pod into the statistics of requests (ranking.Mix). After a restart, all
// pods are new.
func (b *Feeder) learn(obj any) {
	pod, ok := obj.(*v1.Pod)
	if !ok || !b.Names.Holds(pod) || api.Terminal(pod) {
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

func (b *Feeder) removePod(obj any) {
	if pod, ok := obj.(*v1.Pod); ok {
		b.Cache.RemovePod(string(pod.UID))
	}
}

func (b *Feeder) setNode(obj any) {
	node, ok := obj.(*v1.Node)
	if !ok {
		return
	}
	inv, err := b.Names.InventoryOf(node)
	if err != nil {
		b.Log.Warn("node cannot be read; it counts as having no GPUs", zap.String("node", node.Name), zap.Error(err))
		inv = gpu.Inventory{}
	}
	inv.CPU = node.Status.Allocatable.Cpu().MilliValue()
	b.Cache.SetNode(node.Name, inv)
}
