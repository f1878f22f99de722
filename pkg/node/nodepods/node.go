package nodepods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// How long to wait after a write that failed: twice as long each time.
const (
	minRetry = time.Second
	maxRetry = time.Minute
	// writeTimeout bounds one write.
	writeTimeout = 10 * time.Second
	// givenPause is the least time between two writes of what pods were given: their owners can
	// have it change.
	givenPause = time.Second
	// lookTimeout bounds Look.
	lookTimeout = 5 * time.Second
)

// Node keeps the inventory annotation of a node what it should be.
type Node struct {
	client kubernetes.Interface
	names  api.Names
	name   string
	log    *zap.Logger

	api  string   // by which the node's GPUs are handed out, as its label says it; empty: amounts of memory
	apis []string // that the label may say

	leave     func()        // closes leaving
	leaving   chan struct{} // closed when Run is to withdraw the inventory
	withdrawn chan struct{} // closed when Run has

	mu      sync.Mutex // guards the rest
	missing string     // why the annotation is not what it should be
	said    Said
	heard   chan struct{} // closed and replaced when something else is said
	read    chan struct{} // closed when the node was read
}

// Said is what people say on a node's object.
type Said struct {
	Cordoned []gpu.UUID // are to take no new pods
	API      string     // by which its GPUs are to be handed out; empty: amounts of memory
}

// NewNode returns a Node that does nothing until it runs.
func NewNode(client kubernetes.Interface, names api.Names, name string, log *zap.Logger) *Node {
	leaving := make(chan struct{})
	return &Node{
		client: client, names: names, name: name, log: log,
		leave: sync.OnceFunc(func() { close(leaving) }), leaving: leaving, withdrawn: make(chan struct{}),
		missing: "node " + name + " has not been read yet", heard: make(chan struct{}), read: make(chan struct{}),
	}
}

// Serve has Run write that no GPU takes new pods while the node's label says that its GPUs are to be
// handed out by another API than this: one of those that are on. It is called before Run.
func (n *Node) Serve(api string, on []string) { n.api, n.apis = api, on }

// Missing says why the annotation is not what it should be.
func (n *Node) Missing() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.missing
}

// Cordoned returns the GPUs that people want to take no new pods.
func (n *Node) Cordoned() []gpu.UUID {
	said, _ := n.Said()
	return said.Cordoned
}

// Said returns what people say of the node, and a channel that is closed when they say something else.
func (n *Node) Said() (Said, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.said, n.heard
}

// Read is closed once Run knows what people say.
func (n *Node) Read() <-chan struct{} { return n.read }

func (n *Node) selector() string {
	return fields.OneTermEqualSelector("metadata.name", n.name).String()
}

// Run writes until the context is done, or Withdraw is called. The source tells
// what the node offers, and has a channel that is closed when it offers something
// else. The account returns in the same way what pods were given whose
// annotations say less, and whether that is known yet: until then the annotation stays as it is.
func (n *Node) Run(ctx context.Context, source func() (gpu.Inventory, <-chan struct{}), account func() ([]gpu.PodAllocation, bool, <-chan struct{})) error {
	factory := informers.NewSharedInformerFactoryWithOptions(n.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = n.selector()
		}),
		informers.WithTransform(n.trim),
	)
	informer := factory.Core().V1().Nodes().Informer()
	touched, err := changesOf(informer)
	if err != nil {
		return fmt.Errorf("watch node %s: %w", n.name, err)
	}
	factory.StartWithContext(ctx)
	defer shutdown(factory)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}

	wait := minRetry
	given, known, news := account()
	var pause <-chan time.Time // the account is looked at no earlier
	for {
		inv, changed := source()
		inv = api.WithAllocated(inv, given)
		err := n.ensure(ctx, informer.GetStore(), inv, known)
		if ctx.Err() != nil {
			return nil
		}
		n.settle(err)
		var retry <-chan time.Time
		if err != nil {
			retry, wait = time.After(wait), min(2*wait, maxRetry)
		} else {
			wait = minRetry
		}
		heard := news
		if pause != nil {
			heard = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.leaving:
			if !known {
				return nil
			}
			return n.withdraw(ctx, inv)
		case <-heard:
			given, known, news = account()
			pause = time.After(givenPause)
		case <-pause:
			pause = nil
		case <-changed:
		case <-touched:
		case <-retry:
		}
	}
}

// changesOf returns a channel that has something in it once an object of the informer has come or
// changed.
func changesOf(informer cache.SharedIndexInformer) (<-chan struct{}, error) {
	touched := make(chan struct{}, 1)
	touch := func(any) {
		select {
		case touched <- struct{}{}:
		default:
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    touch,
		UpdateFunc: func(_, obj any) { touch(obj) },
	})
	return touched, err
}

// errAccount says that pods may count for less by the new inventory than the kubelet has given them.
var errAccount = errors.New("the kubelet has not listed yet what it has given to the pods of the node")

// ensure writes the annotation and the condition, if they are not what they
// should be, once the account in the inventory is known.
func (n *Node) ensure(ctx context.Context, store cache.Store, inv gpu.Inventory, known bool) error {
	obj, ok, err := store.GetByKey(n.name)
	if err != nil || !ok {
		return fmt.Errorf("node %s is not there yet", n.name)
	}
	node, ok := obj.(*v1.Node)
	if !ok {
		return fmt.Errorf("node %s is a %T", n.name, obj)
	}
	healthy := inv
	if said := n.heed(node); said.API != n.api {
		inv = closed(inv)
	}
	if !known {
		return errAccount
	}
	value, err := api.EncodeInventory(inv)
	if err != nil {
		return fmt.Errorf("encode the inventory: %w", err)
	}
	return errors.Join(n.ensureAnnotation(ctx, node, value, inv), n.ensureCondition(ctx, node, healthy), n.removeStartupTaint(ctx, node))
}

func (n *Node) ensureAnnotation(ctx context.Context, node *v1.Node, value string, inv gpu.Inventory) error {
	if node.Annotations[n.names.Inventory()] == value {
		return nil
	}
	return n.writeAnnotation(ctx, value, inv)
}

func (n *Node) writeAnnotation(ctx context.Context, value string, inv gpu.Inventory) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{n.names.Inventory(): value}},
	})
	if err != nil {
		return fmt.Errorf("encode the inventory: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if _, err := n.client.CoreV1().Nodes().Patch(ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("write the inventory of node %s: %w", n.name, err)
	}
	n.log.Info("inventory written", zap.String("node", n.name), zap.Int("devices", len(inv.Devices)), zap.Int64("units", int64(inv.Allocatable())))
	return nil
}

// settle remembers how a write went, and logs it when it went otherwise than
// the one before.
func (n *Node) settle(err error) {
	missing := ""
	if err != nil {
		missing = err.Error()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if missing != "" && missing != n.missing {
		n.log.Warn("inventory not written", zap.String("node", n.name), zap.Error(err))
	}
	n.missing = missing
}

// trim keeps of a node what is read here.
func (n *Node) trim(obj any) (any, error) {
	node, ok := obj.(*v1.Node)
	if !ok {
		return obj, nil
	}
	out := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion}}
	for _, key := range []string{n.names.Inventory(), n.names.Cordoned()} {
		if value, ok := node.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&out.ObjectMeta, key, value)
		}
	}
	if by, ok := node.Labels[n.names.API()]; ok {
		metav1.SetMetaDataLabel(&out.ObjectMeta, n.names.API(), by)
	}
	if c := conditionOf(node); c != nil {
		out.Status.Conditions = []v1.NodeCondition{*c}
	}
	out.Spec.Taints = node.Spec.Taints
	out.Status.Allocatable = make(v1.ResourceList)
	for _, name := range []v1.ResourceName{n.names.GPUMem(), n.names.GPUShares()} {
		out.Status.Allocatable[name] = node.Status.Allocatable[name]
	}
	return out, nil
}
