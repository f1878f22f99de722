package coexist

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/kube/published"
)

// Published are the GPUs of a node that other drivers of dynamic resource allocation publish.
type Published struct {
	client       kubernetes.Interface
	node, driver string // ours

	store cache.Store
}

// NewPublished returns what others publish than a driver. It knows nothing until it is watched.
func NewPublished(client kubernetes.Interface, node, driver string) *Published {
	return &Published{client: client, node: node, driver: driver}
}

// watch returns once it knows what is published; it knows until the context is done. It is nothing
// where the context was done before.
func (p *Published) watch(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(p.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, p.node).String()
		}))
	informer := factory.Resource().V1().ResourceSlices().Informer()
	p.store = informer.GetStore()
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return fmt.Errorf("watch the slices of node %s: %w", p.node, ctx.Err())
	}
	return nil
}

// gpus returns the drivers of the GPUs that others publish.
func (p *Published) gpus() published.GPUs {
	out := make(published.GPUs)
	if p == nil {
		return out
	}
	for _, obj := range p.store.List() {
		if s, ok := obj.(*resourceapi.ResourceSlice); ok && s.Spec.Driver != p.driver {
			out.Add(s)
		}
	}
	return out
}
