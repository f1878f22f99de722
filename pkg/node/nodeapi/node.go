package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	latest "github.com/gpumem/gpumem/pkg/node/inventory"
)

// The pause after a failed write doubles from minRetry to maxRetry.
const (
	minRetry = time.Second
	maxRetry = time.Minute
	// writeTimeout bounds one write.
	writeTimeout = 10 * time.Second
	// accountInterval is the minimum time between two reads of the accounts, because pod owners can change them
	// often.
	accountInterval = time.Second
	// readTimeout bounds ReadSnapshot and ReadClaims.
	readTimeout = 5 * time.Second
)

// Publisher publishes the inventory annotation and the condition of a node, and reads the administrators' settings
// from the node's object.
type Publisher struct {
	client kubernetes.Interface
	names  api.Names
	name   string
	log    *zap.Logger

	api  string   // API that serves the node's GPUs: a value of the label DOMAIN/api; empty for amounts of memory
	apis []string // enabled APIs, as values of that label

	stop      func()        // closes stopping
	stopping  chan struct{} // closed to make Run withdraw the inventory
	withdrawn chan struct{} // closed after Run has withdrawn the inventory

	settings *latest.Value[Settings]

	mu      sync.Mutex // guards the rest
	missing string     // reason why the annotation differs from the node's offer
}

// Settings contains the settings on a node's object.
type Settings struct {
	Cordoned []gpu.UUID // GPUs that accept no new pods
	API      string     // requested API: a value of the label DOMAIN/api; empty for amounts of memory
}

// NewPublisher returns a Publisher that does nothing until Run is called.
func NewPublisher(client kubernetes.Interface, names api.Names, name string, log *zap.Logger) *Publisher {
	leaving := make(chan struct{})
	return &Publisher{
		client: client, names: names, name: name, log: log,
		stop: sync.OnceFunc(func() { close(leaving) }), stopping: leaving, withdrawn: make(chan struct{}),
		missing: "node " + name + " has not been read yet", settings: latest.NewValue(Settings{}),
	}
}

// SetAPIs sets the API that serves the node's GPUs and the enabled APIs. While the node's label requests another
// enabled API, Run stops all GPUs from accepting new pods. Call it before Run.
func (n *Publisher) SetAPIs(api string, enabled []string) { n.api, n.apis = api, enabled }

// Missing returns the reason why the annotation differs from the node's offer, or an empty string.
func (n *Publisher) Missing() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.missing
}

// Cordoned returns the GPUs that administrators have cordoned.
func (n *Publisher) Cordoned() []gpu.UUID {
	settings, _ := n.Settings()
	return settings.Cordoned
}

// Settings returns the settings on the node's object, and a channel that is closed when they change.
func (n *Publisher) Settings() (Settings, <-chan struct{}) { return n.settings.Get() }

// Read returns a channel that is closed after Run has read the node.
func (n *Publisher) Read() <-chan struct{} { return n.settings.Looked() }

// Run publishes the inventory until the context is done or Withdraw is called. The function `source` returns
// the node's offer, and a channel that is closed when the offer changes. The function `account` returns the
// accounts (see the package comment), whether they are known yet, and a channel that is closed when they change.
// Run does not write the annotation before the accounts are known.
func (n *Publisher) Run(ctx context.Context, source func() (gpu.Inventory, <-chan struct{}), account func() ([]gpu.PodAllocation, bool, <-chan struct{})) error {
	factory := informers.NewSharedInformerFactoryWithOptions(n.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = nodeSelector(n.name)
		}),
		informers.WithTransform(n.trim),
	)
	informer := factory.Core().V1().Nodes().Informer()
	nodeChanged, err := notifyChanges(informer)
	if err != nil {
		return fmt.Errorf("watch node %s: %w", n.name, err)
	}
	factory.StartWithContext(ctx)
	defer shutdown(factory)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}

	delay := minRetry
	accounts, accountsKnown, accountsChanged := account()
	var pause <-chan time.Time // no read of the accounts until it fires
	for {
		inv, offerChanged := source()
		inv = api.WithAllocated(inv, accounts)
		err := n.publish(ctx, informer.GetStore(), inv, accountsKnown)
		if ctx.Err() != nil {
			return nil
		}
		n.recordOutcome(err)
		var retry <-chan time.Time
		if err != nil {
			retry, delay = time.After(delay), min(2*delay, maxRetry)
		} else {
			delay = minRetry
		}
		accountEvents := accountsChanged
		if pause != nil {
			accountEvents = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.stopping:
			if !accountsKnown {
				return nil
			}
			return n.withdraw(ctx, inv)
		case <-accountEvents:
			accounts, accountsKnown, accountsChanged = account()
			pause = time.After(accountInterval)
		case <-pause:
			pause = nil
		case <-offerChanged:
		case <-nodeChanged:
		case <-retry:
		}
	}
}

// notifyChanges returns a channel that receives a value when an object of the informer is added or updated.
func notifyChanges(informer cache.SharedIndexInformer) (<-chan struct{}, error) {
	nodeChanged := make(chan struct{}, 1)
	touch := func(any) {
		select {
		case nodeChanged <- struct{}{}:
		default:
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    touch,
		UpdateFunc: func(_, obj any) { touch(obj) },
	})
	return nodeChanged, err
}

// errAccount reports that the accounts of pods are not known yet. Without them, the inventory could show less for
// a pod than the kubelet has allocated to it.
var errAccount = errors.New("the kubelet has not listed yet what it has given to the pods of the node")

// publish writes the annotation and the condition if they differ from the inventory, and removes the startup
// taint. Until the accounts are known, it writes nothing and returns errAccount.
func (n *Publisher) publish(ctx context.Context, store cache.Store, inv gpu.Inventory, accountsKnown bool) error {
	obj, ok, err := store.GetByKey(n.name)
	if err != nil || !ok {
		return fmt.Errorf("node %s is not there yet", n.name)
	}
	node, ok := obj.(*v1.Node)
	if !ok {
		return fmt.Errorf("node %s is a %T", n.name, obj)
	}
	healthy := inv
	if settings := n.recordSettings(node); settings.API != n.api {
		inv = closed(inv)
	}
	if !accountsKnown {
		return errAccount
	}
	return errors.Join(n.writeInventory(ctx, node.Annotations[n.names.Inventory()], inv), n.writeCondition(ctx, node, healthy), n.removeStartupTaint(ctx, node))
}

// writeInventory writes the annotation, unless its value `current` already describes the inventory.
func (n *Publisher) writeInventory(ctx context.Context, current string, inv gpu.Inventory) error {
	value, err := api.EncodeInventory(inv)
	if err != nil {
		return fmt.Errorf("encode the inventory: %w", err)
	}
	if value == current {
		return nil
	}
	if err := n.patch(ctx, types.MergePatchType, object{"metadata": object{"annotations": object{n.names.Inventory(): value}}}); err != nil {
		return fmt.Errorf("write the inventory of node %s: %w", n.name, err)
	}
	n.log.Info("inventory written", zap.String("node", n.name), zap.Int("devices", len(inv.Devices)), zap.Int64("units", int64(inv.Allocatable())))
	return nil
}

// object is a JSON object.
type object map[string]any

// patch patches the node's object, or a subresource.
func (n *Publisher) patch(ctx context.Context, kind types.PatchType, change any, subresources ...string) error {
	data, err := json.Marshal(change)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err = n.client.CoreV1().Nodes().Patch(ctx, n.name, kind, data, metav1.PatchOptions{}, subresources...)
	return err
}

// recordOutcome records the outcome of a write, and logs a new error.
func (n *Publisher) recordOutcome(err error) {
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

// trim drops the fields of a node that Publisher does not read.
func (n *Publisher) trim(obj any) (any, error) {
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

// recordSettings records and returns the settings on the node's object.
func (n *Publisher) recordSettings(node *v1.Node) Settings {
	settings := Settings{Cordoned: n.names.CordonedGPUs(node)}
	if label := node.Labels[n.names.API()]; slices.Contains(n.apis, label) {
		settings.API = label
	}
	n.settings.Set(settings)
	return settings
}

func conditionOf(node *v1.Node) *v1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == api.GPUsHealthy {
			return c
		}
	}
	return nil
}

// writeCondition writes the condition of the GPUs' health if it differs from the inventory. A node that never had
// a GPU gets no condition.
func (n *Publisher) writeCondition(ctx context.Context, node *v1.Node, inv gpu.Inventory) error {
	desired, current := condition(inv), conditionOf(node)
	if current == nil && len(inv.Devices) == 0 || current != nil && current.Status == desired.Status && current.Reason == desired.Reason && current.Message == desired.Message {
		return nil
	}
	desired.LastHeartbeatTime, desired.LastTransitionTime = metav1.Now(), metav1.Now()
	if current != nil && current.Status == desired.Status {
		desired.LastTransitionTime = current.LastTransitionTime
	}
	change := object{"status": object{"conditions": []v1.NodeCondition{desired}}}
	if err := n.patch(ctx, types.StrategicMergePatchType, change, "status"); err != nil {
		return fmt.Errorf("write condition %s of node %s: %w", api.GPUsHealthy, n.name, err)
	}
	n.log.Info("condition written", zap.String("node", n.name), zap.String("status", string(desired.Status)), zap.String("message", desired.Message))
	return nil
}

func condition(inv gpu.Inventory) v1.NodeCondition {
	var failed []string
	for _, d := range inv.Devices {
		if !d.Status.Works() {
			failed = append(failed, fmt.Sprintf("GPU %d (%s): %s", d.Index, d.UUID, reasons.Causes(d.Status)))
		}
	}
	switch {
	case len(inv.Devices) == 0:
		return v1.NodeCondition{Type: api.GPUsHealthy, Status: v1.ConditionUnknown, Reason: "NoGPU", Message: "no GPU is offered"}
	case len(failed) > 0:
		return v1.NodeCondition{Type: api.GPUsHealthy, Status: v1.ConditionFalse, Reason: "GPUUnhealthy", Message: strings.Join(failed, "; ")}
	default:
		return v1.NodeCondition{Type: api.GPUsHealthy, Status: v1.ConditionTrue, Reason: "GPUsHealthy", Message: fmt.Sprintf("all %d GPUs are healthy", len(inv.Devices))}
	}
}

// removeStartupTaint removes the startup taint once the node offers GPU memory: the kubelet advertises the
// resource, or the node allocates by claims. Without the taint, a cluster autoscaler would add another node for
// a pod that waits for this one.
func (n *Publisher) removeStartupTaint(ctx context.Context, node *v1.Node) error {
	i := slices.IndexFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == api.StartupTaint })
	if i < 0 || n.api != api.ByClaims && !n.advertised(node) {
		return nil
	}
	path := fmt.Sprintf("/spec/taints/%d", i)
	err := n.patch(ctx, types.JSONPatchType, []object{
		{"op": "test", "path": path + "/key", "value": api.StartupTaint}, // fails if other taints have shifted the index
		{"op": "remove", "path": path},
	})
	if err != nil {
		return fmt.Errorf("remove taint %s of node %s: %w", api.StartupTaint, n.name, err)
	}
	n.log.Info("startup taint removed", zap.String("node", n.name))
	return nil
}

// advertised reports whether the kubelet advertises the resource that the node offers.
func (n *Publisher) advertised(node *v1.Node) bool {
	units := node.Status.Allocatable[n.names.Offered(n.api == api.InShares)]
	return !units.IsZero()
}

// Withdraw makes Run publish that no GPU accepts new pods, and return. Withdraw returns after that write, or
// when the context is done.
//
// Run makes this write itself, so that no other write of this process follows. The next plugin starts after
// this one has ended (a DaemonSet's maxSurge is 0). If the API server applies this write after the next
// plugin's first write, that plugin sees the change on its watch and writes again.
func (n *Publisher) Withdraw(ctx context.Context) error {
	n.stop()
	select {
	case <-n.withdrawn:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("withdraw the inventory of node %s: %w", n.name, ctx.Err())
	}
}

// withdraw retries until the write succeeds or the context is done. The condition stays, because no GPU has
// failed.
func (n *Publisher) withdraw(ctx context.Context, inv gpu.Inventory) error {
	for {
		err := n.writeInventory(ctx, "", closed(inv))
		if err == nil {
			close(n.withdrawn)
			return nil
		}
		n.recordOutcome(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(minRetry):
		}
	}
}

// closed returns the inventory with all working GPUs stopped for new pods.
func closed(inv gpu.Inventory) gpu.Inventory {
	inv.Devices = slices.Clone(inv.Devices)
	for i := range inv.Devices {
		if d := &inv.Devices[i]; d.Status.Works() {
			d.Status.Stopped = true
		}
	}
	return inv
}

// stopGrace bounds the wait for watches to stop. While the API server is unreachable, a watch in its retry
// pause ignores its context for up to half a minute.
const stopGrace = time.Second

// shutdown waits up to stopGrace for the watches of a factory whose context is done.
func shutdown(factory informers.SharedInformerFactory) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		factory.Shutdown()
	}()
	select {
	case <-done:
	case <-time.After(stopGrace):
	}
}
