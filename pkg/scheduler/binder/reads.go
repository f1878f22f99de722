package binder

import (
	"context"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Whatever is read from the API server itself goes into the cache, for the watch
// may be behind.

// LookTimeout bounds a read of a node's pods. An API server whose cache is behind
// etcd waits three seconds for it, and then asks etcd.
const LookTimeout = 5 * time.Second

// readPod reads the pod of that name, which may be another by now; nil: there is
// none.
func (b *Binder) readPod(ctx context.Context, ref placement.PodRef) (*v1.Pod, error) {
	read := b.Cache.BeginRead()
	defer read.End()
	pod, err := b.Cluster.ReadPod(ctx, ref.Namespace, ref.Name)
	if err == nil && pod != nil && pod.Spec.NodeName != "" {
		b.enter(read, pod)
	}
	return pod, err
}

// enter records a pod that a read has shown to be bound, and forgets one that has
// ended.
func (b *Binder) enter(read *cache.Read, pod *v1.Pod) {
	if !b.Names.Holds(pod) {
		return
	}
	log := b.Log.With(zap.Stringer("pod", api.Ref(pod)), zap.String("uid", string(pod.UID)), zap.String("node", pod.Spec.NodeName))
	if api.Terminal(pod) {
		if b.Cache.ForgetPod(string(pod.UID)) {
			log.Info("assumed pod forgotten: it has ended")
		}
		return
	}
	holding, err := b.Names.Holding(pod)
	if !holding.Request.Empty() && read.Enter(pod.Spec.NodeName, holding, b.Now()) {
		log.Info("a read has shown a pod before the watch has", zap.NamedError("unreadable", err))
	}
}
