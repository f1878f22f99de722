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
	others     informers.SharedInformerFactory // nodes, and the budgets of pods
	podLister  listers.PodLister
	podIndex   toolscache.Indexer
	nodeLister listers.NodeLister
	budgets    policylisters.PodDisruptionBudgetLister
	podsDone   toolscache.ResourceEventHandlerRegistration
	nodesDone  toolscache.ResourceEventHandlerRegistration
	// budgetsDone reports whether the first list of budgets is here: no pod
	// handles their events.
	budgetsDone toolscache.InformerSynced
}

// byNode is the index of pods by the node that they are on.
const byNode = "node"

// New makes a controller. Nothing is watched until Run.
func New(log *zap.Logger, client kubernetes.Interface, names api.Names, c *cache.Cache) (*Controller, error) {
	tweak := informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = notTerminal().String() })
	pods := informers.NewSharedInformerFactoryWithOptions(client, 0, tweak, informers.WithTransform(Trim(names)))
	others := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(Trim(names)))
	return follow(log, pods, others, names, c)
}

// Follow makes a controller that follows the informers of kube-scheduler, which watch the pods that
// are not terminal. The caller calls it before it starts the informers, and does not call Run.
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
	ctl.progress.listed = podInformer.Informer().LastSyncResourceVersion
	if ctl.podsDone, err = podInformer.Informer().AddEventHandler(ctl.progress.follow(feeder.PodHandler())); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	if ctl.nodesDone, err = nodeInformer.Informer().AddEventHandler(feeder.NodeHandler()); err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	return ctl, nil
}

// notTerminal selects the pods that have not ended, on the server's side.
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

// Missing says which list the cache has not seen in full yet; it is empty when
// it has seen all.
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

// Shown reports whether the cache has heard of all that was written of pods up to a
// resource version.
func (c *Controller) Shown(revision string) bool { return c.progress.past(revision) }

// Pod returns a pod as the watch last showed it, or nil. It is trimmed to what
// gpumem reads of a pod.
func (c *Controller) Pod(namespace, name string) *v1.Pod {
	pod, err := c.podLister.Pods(namespace).Get(name)
	if err != nil {
		return nil // a lister's only error: not found
	}
	return pod
}

// Node returns a node as the watch last saw it, or nil. It is trimmed to what gpumem
// reads of a node, and not to be changed.
func (c *Controller) Node(name string) *v1.Node {
	node, err := c.nodeLister.Get(name)
	if err != nil {
		return nil // a lister's only error: not found
	}
	return node
}

// Stored returns all objects that the watches have shown, trimmed to what
// gpumem reads, and whether the first lists are among them. They are not to be
// changed. The cache may not have heard of the latest yet.
func (c *Controller) Stored() (pods []*v1.Pod, nodes []*v1.Node, complete bool) {
	pods, podsErr := c.podLister.List(labels.Everything())
	nodes, nodesErr := c.nodeLister.List(labels.Everything())
	return pods, nodes, c.Missing() == "" && podsErr == nil && nodesErr == nil
}

// nodeOf returns the index of pods by node: those that ask for GPU memory and
// have none are under the empty name.
func nodeOf(names api.Names) toolscache.IndexFunc {
	return func(obj any) ([]string, error) {
		if pod, ok := obj.(*v1.Pod); ok && (pod.Spec.NodeName != "" || names.Holds(pod)) {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	}
}

// PodsOn returns the pods that are bound to a node and not terminal, trimmed.
func (c *Controller) PodsOn(node string) []*v1.Pod {
	objects, err := c.podIndex.ByIndex(byNode, node)
	if err != nil {
		return nil // an index's only error: there is none of that name
	}
	pods := make([]*v1.Pod, 0, len(objects))
	for _, obj := range objects {
		if pod, ok := obj.(*v1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Waiting returns the pods that ask for GPU memory and are on no node, trimmed.
func (c *Controller) Waiting() []*v1.Pod { return c.PodsOn("") }

// Budgets returns the PodDisruptionBudgets of a namespace, trimmed.
func (c *Controller) Budgets(namespace string) []*policyv1.PodDisruptionBudget {
	budgets, err := c.budgets.PodDisruptionBudgets(namespace).List(labels.Everything())
	if err != nil {
		return nil // a lister of a cache has none
	}
	return budgets
}
