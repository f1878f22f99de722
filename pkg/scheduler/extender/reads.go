package extender

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

// lookTimeout bounds a read of a node's pods. An API server whose cache is behind
// etcd waits three seconds for it, and then asks etcd.
const lookTimeout = 5 * time.Second

// readPod reads the pod of that name, which may be another by now; nil: there is
// none.
func (e *Extender) readPod(ctx context.Context, ref placement.PodRef) (*v1.Pod, error) {
	read := e.Cache.BeginRead()
	defer read.End()
	pod, err := e.Cluster.ReadPod(ctx, ref.Namespace, ref.Name)
	if err == nil && pod != nil && pod.Spec.NodeName != "" {
		e.enter(read, pod)
	}
	return pod, err
}

// enter records a pod that a read has shown to be bound, and forgets one that has
// ended.
func (e *Extender) enter(read *cache.Read, pod *v1.Pod) {
	if !e.Names.Holds(pod) {
		return
	}
	log := e.Log.With(zap.Stringer("pod", api.Ref(pod)), zap.String("uid", string(pod.UID)), zap.String("node", pod.Spec.NodeName))
	if api.Terminal(pod) {
		if e.Cache.ForgetPod(string(pod.UID)) {
			log.Info("assumed pod forgotten: it has ended")
		}
		return
	}
	holding, err := e.Names.Holding(pod)
	if !holding.Request.Empty() && read.Enter(pod.Spec.NodeName, holding, e.Now()) {
		log.Info("a read has shown a pod before the watch has", zap.NamedError("unreadable", err))
	}
}
