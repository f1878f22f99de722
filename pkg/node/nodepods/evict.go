package nodepods

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/evict"
)

// Evictor asks the API server to evict pods: it refuses where a disruption budget
// keeps one.
type Evictor struct{ client kubernetes.Interface }

// NewEvictor returns an evictor.
func NewEvictor(client kubernetes.Interface) *Evictor { return &Evictor{client: client} }

// Evict asks for the eviction of this very pod, and not of one that has its name
// by now. One that is gone is an error too: see package evict.
func (e *Evictor) Evict(ctx context.Context, ref placement.PodRef) error {
	gone, err := evict.Pod(ctx, e.client, ref, nil)
	if gone {
		err = errors.New("it is gone")
	}
	if err != nil {
		return fmt.Errorf("evict pod %s: %w", ref, err)
	}
	return nil
}
