package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"go.uber.org/zap"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
)

const (
	memoryNodes = 5000
	memoryPods  = 100000
)

// benchMemory measures what the extender keeps of a cluster: the live heap beyond
// that of informers which trim objects in the same way and keep them, and nothing
// else. With no pods, that is what nodes cost; what pods add is theirs.
func benchMemory(ctx context.Context, _ options, r *report) error {
	names, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		return err
	}
	var floor, all [2]kept // without pods, with
	for i, pods := range []int{0, memoryPods} {
		if floor[i], err = measure(ctx, names, pods, floorOf(names)); err != nil {
			return err
		}
		if all[i], err = measure(ctx, names, pods, extenderOf(names)); err != nil {
			return err
		}
	}
	const kib = 1024
	perNode := func(k [2]kept) float64 { return k[0].bytes / memoryNodes / kib }
	perPod := func(k [2]kept) float64 { return (k[1].bytes - k[0].bytes) / memoryPods / kib }
	r.add(
		result{Name: "memory-per-pod", Value: perPod(all) - perPod(floor), Unit: "KiB beyond the floor"}.atMost(1),
		result{Name: "memory-per-node", Value: perNode(all) - perNode(floor), Unit: "KiB beyond the floor"}.atMost(8),
		result{Name: "memory-floor-per-pod", Value: perPod(floor), Unit: "KiB"},
		result{Name: "memory-floor-per-node", Value: perNode(floor), Unit: "KiB"},
		result{Name: "memory-all", Value: all[1].bytes / kib / kib, Unit: "MiB"},
		result{Name: "memory-ready-floor", Value: floor[1].ready.Seconds(), Unit: "s, the making of objects included"},
		result{Name: "memory-ready", Value: all[1].ready.Seconds(), Unit: "s, the making of objects included"},
	)
	return nil
}

// kept is what something has on the heap when it is ready.
type kept struct {
	bytes float64
	ready time.Duration // from its start
}

// keeper starts something that reads all objects, and returns once it has them.
// What keeps them lives until keep is called.
type keeper func(ctx context.Context, client kubernetes.Interface) (keep func(), err error)

func measure(ctx context.Context, names api.Names, pods int, start keeper) (kept, error) {
	server := startAPI(names, memoryNodes, pods)
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: server.URL, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: kruntime.ContentTypeProtobuf},
	})
	if err != nil {
		return kept{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before, began := liveHeap(), time.Now()
	keep, err := start(ctx, client)
	if err != nil {
		return kept{}, err
	}
	ready := time.Since(began)
	after := liveHeap()
	keep()
	return kept{bytes: after - before, ready: ready}, nil
}

// liveHeap returns the bytes that are in use. What finalizers let go of is freed
// by the second collection.
func liveHeap() float64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

// extenderOf starts what gpumem-extender runs, and asks in several ways where a
// pod fits, because answers are kept.
func extenderOf(names api.Names) keeper {
	return func(ctx context.Context, client kubernetes.Interface) (func(), error) {
		books := cache.New()
		watch, err := controller.New(zap.NewNop(), client, names, books)
		if err != nil {
			return nil, err
		}
		done := make(chan struct{})
		go func() { defer close(done); watch.Run(ctx) }()
		err = waitFor(ctx, func() bool { return watch.Missing() == "" })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", watch.Missing(), err)
		}
		for _, units := range sizes {
			req, err := names.Request(pod(names, 0, units))
			if err != nil {
				return nil, err
			}
			question := cache.NewQuestion(placement.PodRef{Name: "new"}, req, placement.Binpack)
			for i := range memoryNodes {
				_ = books.Refused(nodeName(i), question)
			}
		}
		return func() { runtime.KeepAlive(watch); runtime.KeepAlive(books) }, nil
	}
}

// floorOf starts informers alone.
func floorOf(names api.Names) keeper {
	return func(ctx context.Context, client kubernetes.Interface) (func(), error) {
		factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(controller.Trim(names)))
		pods, nodes := factory.Core().V1().Pods().Informer(), factory.Core().V1().Nodes().Informer()
		factory.StartWithContext(ctx)
		if err := waitFor(ctx, func() bool { return pods.HasSynced() && nodes.HasSynced() }); err != nil {
			return nil, err
		}
		return func() { runtime.KeepAlive(factory) }, nil
	}
}

func waitFor(ctx context.Context, done func() bool) error {
	const patience = 5 * time.Minute
	return wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return done(), nil
	})
}
