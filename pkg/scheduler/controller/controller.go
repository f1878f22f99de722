package controller

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Controller feeds a cache from watches.
type Controller struct {
	names      api.Names
	progress   progress
	pods       informers.SharedInformerFactory
	others     informers.SharedInformerFactory // nodes and PodDisruptionBudgets
	podLister  listers.PodLister
	podIndex   toolscache.Indexer
	nodeLister listers.NodeLister
	budgets    policylisters.PodDisruptionBudgetLister
	podsDone   toolscache.ResourceEventHandlerRegistration
	nodesDone  toolscache.ResourceEventHandlerRegistration
	// budgetsDone reports whether the first list of budgets has arrived. Budgets have no event handler.
	budgetsDone toolscache.InformerSynced
}

// byNode is the name of the index of pods by node.
const byNode = "node"

// New returns a controller. It watches nothing until Run.
func New(log *zap.Logger, client kubernetes.Interface, names api.Names, c *cache.Cache) (*Controller, error) {
	tweak := informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = notTerminal().String() })
	pods := informers.NewSharedInformerFactoryWithOptions(client, 0, tweak, informers.WithTransform(Trim(names)))
	others := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(Trim(names)))
	return follow(log, pods, others, names, c)
}

// Follow returns a controller that uses the informers of kube-scheduler, whose pod informer omits terminal
// pods. Call it before the informers start, and do not call Run.
func Follow(log *zap.Logger, factory informers.SharedInformerFactory, names api.Names, c *cache.Cache) (*Controller, error) {
	return follow(log, factory, factory, names, c)
}

func follow(log *zap.Logger, pods, others informers.SharedInformerFactory, names api.Names, c *cache.Cache) (*Controller, error) {
	ctl := &Controller{names: names, pods: pods, others: others}
	podInformer := ctl.pods.Core().V1().Pods()
	nodeInformer := ctl.others.Core().V1().Nodes()
	ctl.podLister, ctl.nodeLister = podInformer.Lister(), nodeInformer.Lister()
	ctl.podIndex = podInformer.Informer().GetIndexer()
	if err := podInformer.Informer().AddIndexers(toolscache.Indexers{byNode: nodeOf(names)}); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	budgetInformer := ctl.others.Policy().V1().PodDisruptionBudgets()
	ctl.budgets, ctl.budgetsDone = budgetInformer.Lister(), budgetInformer.Informer().HasSynced
	feeder := &Feeder{Log: log, Names: names, Cache: c}
	var err error
	ctl.progress.received = podInformer.Informer().LastSyncResourceVersion
	if ctl.podsDone, err = podInformer.Informer().AddEventHandler(ctl.progress.wrapHandler(feeder.PodHandler())); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	if ctl.nodesDone, err = nodeInformer.Informer().AddEventHandler(feeder.NodeHandler()); err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	return ctl, nil
}

// notTerminal is a field selector for pods that have not ended.
func notTerminal() fields.Selector {
	return fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(v1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(v1.PodFailed)),
	)
}

// Run watches until the context is done.
func (c *Controller) Run(ctx context.Context) {
	c.pods.Start(ctx.Done())
	c.others.Start(ctx.Done())
	<-ctx.Done()
	c.pods.Shutdown()
	c.others.Shutdown()
}

// Missing returns the first list that is not in the cache yet; empty: all are.
func (c *Controller) Missing() string {
	switch {
	case !c.nodesDone.HasSynced():
		return "the first list of nodes has not been worked off"
	case !c.podsDone.HasSynced():
		return "the first list of pods has not been worked off"
	case !c.budgetsDone():
		return "the first list of PodDisruptionBudgets has not arrived"
	}
	return ""
}

// Shown reports whether the cache has all changes of pods up to a resource version.
func (c *Controller) Shown(revision string) bool { return c.progress.hasPassed(revision) }

// Pod returns a pod as the watch last showed it, or nil. The pod is trimmed.
func (c *Controller) Pod(namespace, name string) *v1.Pod {
	pod, err := c.podLister.Pods(namespace).Get(name)
	if err != nil {
		return nil // a lister returns no error but NotFound
	}
	return pod
}

// Node returns a node as the watch last showed it, or nil. The node is trimmed. Callers must not change it.
func (c *Controller) Node(name string) *v1.Node {
	node, err := c.nodeLister.Get(name)
	if err != nil {
		return nil // a lister returns no error but NotFound
	}
	return node
}

// Stored returns all objects that the watches have shown, trimmed, and whether the first lists are complete.
// Callers must not change the objects. The cache may not have the latest changes yet.
func (c *Controller) Stored() (pods []*v1.Pod, nodes []*v1.Node, complete bool) {
	pods, podsErr := c.podLister.List(labels.Everything())
	nodes, nodesErr := c.nodeLister.List(labels.Everything())
	return pods, nodes, c.Missing() == "" && podsErr == nil && nodesErr == nil
}

// nodeOf returns the index function for pods by node. Pods that request GPU memory and have no node are under
// the empty name.
func nodeOf(names api.Names) toolscache.IndexFunc {
	return func(obj any) ([]string, error) {
		if pod, ok := obj.(*v1.Pod); ok && (pod.Spec.NodeName != "" || names.Holds(pod)) {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	}
}

// PodsOn returns the pods that are bound to a node and not terminal. The pods are trimmed.
func (c *Controller) PodsOn(node string) []*v1.Pod {
	objects, err := c.podIndex.ByIndex(byNode, node)
	if err != nil {
		return nil // the only error is an unknown index
	}
	pods := make([]*v1.Pod, 0, len(objects))
	for _, obj := range objects {
		if pod, ok := obj.(*v1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Waiting returns the pods that request GPU memory and have no node. The pods are trimmed.
func (c *Controller) Waiting() []*v1.Pod { return c.PodsOn("") }

// Budgets returns the PodDisruptionBudgets of a namespace. They are trimmed.
func (c *Controller) Budgets(namespace string) []*policyv1.PodDisruptionBudget {
	budgets, err := c.budgets.PodDisruptionBudgets(namespace).List(labels.Everything())
	if err != nil {
		return nil // a lister of an informer returns no error
	}
	return budgets
}
