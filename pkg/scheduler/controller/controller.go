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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Controller feeds a cache from watches.
type Controller struct {
	// Lease names the Lease of the kube-schedulers that send requests to the extender. The plugin leaves it
	// empty, because its own process takes part in the election.
	Lease types.NamespacedName

	names    api.Names
	client   kubernetes.Interface
	factory  informers.SharedInformerFactory
	progress progress
	pods     listers.PodLister
	podIndex toolscache.Indexer
	nodes    listers.NodeLister
	budgets  policylisters.PodDisruptionBudgetLister
	lists    []firstList
}

// firstList is the first list of one kind of objects.
type firstList struct {
	missing string // message until the list is done
	isDone  toolscache.InformerSynced
}

// byNode is the name of the index of pods by node. Pods that request GPU memory and have no node are under the
// empty name.
const byNode = "node"

// New returns a controller. It watches nothing until Run.
func New(log *zap.Logger, client kubernetes.Interface, names api.Names, c *cache.Cache) (*Controller, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(Trim(names)))
	// The factory stores the first informer of a type. So its pod informer omits terminal pods.
	omitTerminal := func(o *metav1.ListOptions) { o.FieldSelector = notTerminal().String() }
	coreinformers.New(factory, metav1.NamespaceAll, omitTerminal).Pods().Informer()
	return Follow(log, client, factory, names, c)
}

// Follow returns a controller that uses the informers of a factory. The factory's pod informer must omit terminal
// pods, as kube-scheduler's does. Call Follow before the informers start. If kube-scheduler starts them, do not
// call Run.
func Follow(log *zap.Logger, client kubernetes.Interface, factory informers.SharedInformerFactory, names api.Names, books *cache.Cache) (*Controller, error) {
	pods, nodes, budgets := factory.Core().V1().Pods(), factory.Core().V1().Nodes(), factory.Policy().V1().PodDisruptionBudgets()
	c := &Controller{
		names: names, client: client, factory: factory,
		pods: pods.Lister(), podIndex: pods.Informer().GetIndexer(), nodes: nodes.Lister(), budgets: budgets.Lister(),
		progress: progress{received: pods.Informer().LastSyncResourceVersion},
	}
	nodeOf := func(obj any) ([]string, error) {
		if pod, ok := obj.(*v1.Pod); ok && (pod.Spec.NodeName != "" || names.Holds(pod)) {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	}
	if err := pods.Informer().AddIndexers(toolscache.Indexers{byNode: nodeOf}); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	feeder := &Feeder{Log: log, Names: names, Cache: books}
	podsDone, err := pods.Informer().AddEventHandler(c.progress.wrapHandler(feeder.PodHandler()))
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	nodesDone, err := nodes.Informer().AddEventHandler(feeder.NodeHandler())
	if err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	c.lists = []firstList{
		{"the first list of nodes has not been worked off", nodesDone.HasSynced},
		{"the first list of pods has not been worked off", podsDone.HasSynced},
		{"the first list of PodDisruptionBudgets has not arrived", budgets.Informer().HasSynced},
	}
	return c, nil
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
	c.factory.Start(ctx.Done())
	<-ctx.Done()
	c.factory.Shutdown()
}

// Missing returns a message about the first list that is not complete; empty: all are.
func (c *Controller) Missing() string {
	for _, list := range c.lists {
		if !list.isDone() {
			return list.missing
		}
	}
	return ""
}

// Shown reports whether the cache has all changes of pods up to a resource version.
func (c *Controller) Shown(revision string) bool { return c.progress.hasPassed(revision) }

// Pod returns a pod as the watch last showed it, or nil. The pod is trimmed.
func (c *Controller) Pod(namespace, name string) *v1.Pod {
	pod, _ := c.pods.Pods(namespace).Get(name) // the only error is NotFound
	return pod
}

// Node returns a node as the watch last showed it, or nil. The node is trimmed. Callers must not change it.
func (c *Controller) Node(name string) *v1.Node {
	node, _ := c.nodes.Get(name) // the only error is NotFound
	return node
}

// Stored returns all objects that the watches have shown, trimmed, and whether the first lists are complete.
// Callers must not change the objects. The cache may not have the latest changes yet.
func (c *Controller) Stored() (pods []*v1.Pod, nodes []*v1.Node, complete bool) {
	pods, podsErr := c.pods.List(labels.Everything())
	nodes, nodesErr := c.nodes.List(labels.Everything())
	return pods, nodes, c.Missing() == "" && podsErr == nil && nodesErr == nil
}

// PodsOn returns the pods that are bound to a node and not terminal. The pods are trimmed.
func (c *Controller) PodsOn(node string) []*v1.Pod {
	objects, _ := c.podIndex.ByIndex(byNode, node) // the only error is an unknown index
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
	budgets, _ := c.budgets.PodDisruptionBudgets(namespace).List(labels.Everything()) // the lister of an informer returns no error
	return budgets
}
