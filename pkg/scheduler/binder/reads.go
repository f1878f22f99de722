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

// All methods of this file enter the pods that they read into the cache, because the watch may be behind.

// LookTimeout bounds one read from the API server. An API server whose cache is behind etcd waits three
// seconds for its cache, and then reads from etcd.
const LookTimeout = 5 * time.Second

// readPod reads the pod with the name of ref, which may have another UID by now; nil: there is none.
func (b *Binder) readPod(ctx context.Context, ref placement.PodRef) (*v1.Pod, error) {
	read := b.Cache.BeginRead()
	defer read.End()
	pod, err := b.Cluster.ReadPod(ctx, ref.Namespace, ref.Name)
	if err == nil && pod != nil && pod.Spec.NodeName != "" {
		b.enter(read, pod)
	}
	return pod, err
}

// enter records a bound pod that a read has shown, and forgets a pod that has ended.
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
