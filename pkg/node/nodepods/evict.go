package nodepods

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/evict"
	"github.com/gpumem/gpumem/pkg/node/usage"
)

// Evictor asks the API server to evict pods: it refuses where a disruption budget
// keeps one.
type Evictor struct {
	client kubernetes.Interface
	pods   *Pods // nil: the node has no static pods that could be evicted
}

// NewEvictor returns an evictor.
func NewEvictor(client kubernetes.Interface, pods *Pods) *Evictor {
	return &Evictor{client: client, pods: pods}
}

// Evict asks for the eviction of this very pod, and not of one that has its name
// by now. One that is gone is an error too: see package evict. The eviction of a static pod would remove its mirror at the API
// server: the kubelet leaves the containers alone, and creates another mirror.
func (e *Evictor) Evict(ctx context.Context, ref placement.PodRef) error {
	if e.pods.isStatic(ref.UID) {
		return fmt.Errorf("pod %s: %w", ref, usage.ErrStatic)
	}
	gone, err := evict.Pod(ctx, e.client, ref, nil)
	if gone {
		err = errors.New("it is gone")
	}
	if err != nil {
		return fmt.Errorf("evict pod %s: %w", ref, err)
	}
	return nil
}
