package controller

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/cache"
)

// Controller feeds a cache from watches.
type Controller struct {
	pods       informers.SharedInformerFactory
	nodes      informers.SharedInformerFactory
	podLister  listers.PodLister
	nodeLister listers.NodeLister
	podsDone   toolscache.ResourceEventHandlerRegistration
	nodesDone  toolscache.ResourceEventHandlerRegistration
}

// New makes a controller. Nothing is watched until Run.
func New(log *zap.Logger, client kubernetes.Interface, names api.Names, c *cache.Cache) (*Controller, error) {
	notTerminal := informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.AndSelectors(
			fields.OneTermNotEqualSelector("status.phase", string(v1.PodSucceeded)),
			fields.OneTermNotEqualSelector("status.phase", string(v1.PodFailed)),
		).String()
	})
	ctl := &Controller{
		pods:  informers.NewSharedInformerFactoryWithOptions(client, 0, notTerminal, informers.WithTransform(trim(names))),
		nodes: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim(names))),
	}
	podInformer := ctl.pods.Core().V1().Pods()
	nodeInformer := ctl.nodes.Core().V1().Nodes()
	ctl.podLister, ctl.nodeLister = podInformer.Lister(), nodeInformer.Lister()
	books := &Books{Log: log, Names: names, Cache: c}
	var err error
	if ctl.podsDone, err = podInformer.Informer().AddEventHandler(books.PodHandler()); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	if ctl.nodesDone, err = nodeInformer.Informer().AddEventHandler(books.NodeHandler()); err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	return ctl, nil
}

// Run watches until the context is done.
func (c *Controller) Run(ctx context.Context) {
	c.pods.StartWithContext(ctx)
	c.nodes.StartWithContext(ctx)
	<-ctx.Done()
	c.pods.Shutdown()
	c.nodes.Shutdown()
}

// Missing says which list the cache has not seen in full yet; it is empty when
// it has seen both.
func (c *Controller) Missing() string {
	switch {
	case !c.nodesDone.HasSynced():
		return "the first list of nodes has not been worked off"
	case !c.podsDone.HasSynced():
		return "the first list of pods has not been worked off"
	}
	return ""
}

// Pod returns a pod as the watch last told of it, or nil. It is trimmed to what
// gpumem reads of a pod.
func (c *Controller) Pod(namespace, name string) *v1.Pod {
	pod, err := c.podLister.Pods(namespace).Get(name)
	if err != nil {
		return nil // a lister's only error: not found
	}
	return pod
}

// Stored returns all objects that the watches have told of, trimmed to what
// gpumem reads, and whether the first lists are among them. They are not to be
// changed. The cache may not have heard of the latest yet.
func (c *Controller) Stored() (pods []*v1.Pod, nodes []*v1.Node, complete bool) {
	pods, podsErr := c.podLister.List(labels.Everything())
	nodes, nodesErr := c.nodeLister.List(labels.Everything())
	return pods, nodes, c.Missing() == "" && podsErr == nil && nodesErr == nil
}
