package nodepods

import (
	"context"
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/placement"
)

// Evictor asks the API server to evict pods: it refuses where a disruption budget
// keeps one.
type Evictor struct{ client kubernetes.Interface }

// NewEvictor returns an evictor.
func NewEvictor(client kubernetes.Interface) *Evictor { return &Evictor{client: client} }

// Evict asks for the eviction of this very pod, and not of one that has its name
// by now.
func (e *Evictor) Evict(ctx context.Context, ref placement.PodRef) error {
	uid := types.UID(ref.UID)
	err := e.client.PolicyV1().Evictions(ref.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
	})
	if err != nil {
		return fmt.Errorf("evict pod %s: %w", ref, err)
	}
	return nil
}
