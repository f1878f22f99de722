package coexist

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/kube/resourceslices"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// Users lists the devices that the kubelet has allocated.
type Users interface {
	// Users returns pods, as namespace/name, by resource and device ID.
	Users(ctx context.Context) (map[string]map[string]string, error)
}

// Retired returns, by GPU, the clients of an MPS protocol that gpumem no longer runs: pods or claims, as
// namespace/name. The parameter held maps the kubelet's device IDs of gpumem's resource to pods.
type Retired func(inv gpu.Inventory, held map[string]string) map[gpu.UUID][]string

const (
	listTimeout        = time.Second // per call to the kubelet
	firstRetryInterval = time.Second // between two calls to a kubelet that has never answered
	// firstListTimeout bounds the retries of the first call. Then the node publishes its GPUs as unhealthy.
	firstListTimeout = 10 * time.Second
)

// notListedReason is the reason why GPUs accept no pods before the kubelet's first answer.
const notListedReason = "the kubelet has not reported yet which pods use it"

// Filter is an inventory stage that omits GPUs by --devices, and marks GPUs of other owners as unhealthy.
type Filter struct {
	choice   choice
	memory   string // the resource of GPU memory
	interval time.Duration
	source   inventory.Upstream
	users    Users
	events   event.Events
	log      *zap.Logger

	published   *Published // nil if the filter ignores other drivers
	findRetired Retired    // nil if the filter ignores retired protocols

	// From the kubelet's last answer.
	listed       bool                  // the kubelet has answered at least once
	nvidiaPods   map[gpu.UUID]string   // pods that have the GPU as nvidia.com/gpu
	gpusharePods string                // pods of gpushare
	retired      map[gpu.UUID][]string // clients of a retired MPS protocol
	reported     map[gpu.UUID]bool     // GPUs with an event about their use by both plugins

	inventory.Stage // marks GPUs of other owners
}

// NewFilter returns a filter that marks nothing until Run is called. The parameter memory is the resource that
// gpumem offers.
func NewFilter(selector Selector, memory string, interval time.Duration, source inventory.Upstream, users Users, events event.Events, log *zap.Logger) *Filter {
	return &Filter{
		choice: choice{Selector: selector}, memory: memory, interval: interval, source: source, users: users, events: events, log: log,
		Stage: inventory.NewStage(source),
	}
}

// SetPublished makes the filter mark GPUs while other drivers publish them. Call it before Run.
func (n *Filter) SetPublished(published *Published) { n.published = published }

// SetIndexRecord sets the record of each GPU's first index, for later processes. Call it before Run.
func (n *Filter) SetIndexRecord(record checkpoint.Store) {
	n.choice.record = checkpoint.Bounded(record, maxReads)
}

// SetRetired makes the filter mark GPUs while they have clients of a retired MPS protocol. Call it before Run.
func (n *Filter) SetRetired(retired Retired) { n.findRetired = retired }

// markForeign drops GPUs that the selector excludes, and marks GPUs with other users as unhealthy.
func (n *Filter) markForeign(inv gpu.Inventory, reason string) (gpu.Inventory, string) {
	total := len(inv.Devices)
	selected := n.choice.apply(inv.Devices, n.log)
	inv.Devices = slices.DeleteFunc(slices.Clone(inv.Devices), func(d gpu.Device) bool { return !selected[d.UUID] })
	inv.Links = slices.DeleteFunc(slices.Clone(inv.Links), func(l gpu.Link) bool {
		_, a := inv.Device(l.A)
		_, b := inv.Device(l.B)
		return !a || !b
	})
	if len(inv.Devices) == 0 && total > 0 {
		reason = fmt.Sprintf("none of the %d GPUs is among --devices", total)
	}
	published := n.published.gpus()
	for i := range inv.Devices {
		d := &inv.Devices[i]
		switch driver := cmp.Or(published[d.UUID], published[d.Parent]); {
		case !d.Status.Works():
		case !n.listed:
			d.Status = gpu.Unhealthy(notListedReason)
		case n.gpusharePods != "":
			d.Status = gpu.Unhealthy("in use by pods that gpushare placed: " + n.gpusharePods)
		case n.nvidiaPods[d.UUID] != "":
			d.Status = gpu.Unhealthy("in use as nvidia.com/gpu by pod " + n.nvidiaPods[d.UUID])
		case len(n.retired[d.UUID]) > 0:
			d.Status = gpu.Unhealthy(retiredReason(n.retired[d.UUID]))
		case driver != "":
			d.Status = gpu.Unhealthy("published by driver " + driver + ", which hands it out")
		}
	}
	return inv, reason
}

// Run updates the inventory at an interval and when the source changes, until the context is done. It waits for
// the source's first probe, and for the kubelet's first answer, up to firstListTimeout.
func (n *Filter) Run(ctx context.Context) error {
	n.Wait(ctx)
	n.choice.load(ctx, n.log)
	if n.published != nil {
		if err := n.published.watch(ctx); err != nil {
			n.log.Info("GPUs that other drivers publish are unknown", zap.Error(err))
			return nil
		}
	}
	var failure error
	err := wait.PollUntilContextTimeout(ctx, firstRetryInterval, firstListTimeout, true, func(ctx context.Context) (bool, error) {
		inv, _, _ := n.source.Inventory()
		failure = n.listUsers(ctx, inv)
		return failure == nil || len(inv.Devices) == 0, nil
	})
	if err != nil && ctx.Err() == nil {
		n.log.Warn("GPUs are unhealthy until the kubelet reports which pods use them", zap.Error(failure))
	}
	return n.Watch(ctx, n.interval, n.refresh)
}

// refresh reads the kubelet's list, or uses the last one after an error, and marks the GPUs of other owners.
func (n *Filter) refresh(ctx context.Context, inv gpu.Inventory, reason string) (gpu.Inventory, string) {
	if err := n.listUsers(ctx, inv); err != nil {
		n.log.Debug("users of GPUs are unknown: the kubelet's last answer holds", zap.Error(err))
	}
	return n.markForeign(inv, reason)
}

// listUsers records the users of GPUs from the kubelet's list.
func (n *Filter) listUsers(ctx context.Context, inv gpu.Inventory) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	users, err := n.users.Users(ctx)
	if err != nil {
		return err
	}
	n.listed = true
	n.nvidiaPods, n.gpusharePods = listNVIDIAPods(users), gpusharePods(users)
	if n.findRetired != nil {
		n.retired = n.findRetired(inv, users[n.memory])
	}
	n.reportConflicts(inv, users[n.memory])
	return nil
}

// retiredReason returns the reason for a GPU with clients of a retired MPS protocol, with the remedy.
func retiredReason(clients []string) string {
	return "clients of MPS protocol 3, which gpumem no longer runs, use it: delete " + abbreviateNames(slices.Values(clients), 8)
}

// abbreviateNames returns up to `limit` names, in alphabetical order, and the number of further names.
func abbreviateNames(names iter.Seq[string], limit int) string {
	total := slices.Sorted(names)
	if len(total) <= limit {
		return strings.Join(total, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(total[:limit], ", "), len(total)-limit)
}

// listNVIDIAPods returns the pods with devices of NVIDIA's plugin: whole GPUs, replicas, and MIG instances. If
// several pods share a GPU, it returns the last in alphabetical order, so that the inventory is stable.
func listNVIDIAPods(users map[string]map[string]string) map[gpu.UUID]string {
	taken := make(map[gpu.UUID]string)
	for resource, by := range users {
		if resource != "nvidia.com/gpu" && resource != "nvidia.com/gpu.shared" && !strings.HasPrefix(resource, "nvidia.com/mig-") {
			continue
		}
		for id, pod := range by {
			uuid, _, _ := strings.Cut(id, "::")
			taken[gpu.UUID(uuid)] = max(taken[gpu.UUID(uuid)], pod)
		}
	}
	return taken
}

// gpusharePods returns the names of the pods with device IDs of gpushare's plugin.
func gpusharePods(users map[string]map[string]string) string {
	pods := make(map[string]bool)
	for _, by := range users {
		for id, pod := range by {
			if gpu.SlotID(id).GPUShare() {
				pods[pod] = true
			}
		}
	}
	return abbreviateNames(maps.Keys(pods), 3)
}

// reportConflicts records an Event for each GPU that has become allocated by both plugins.
func (n *Filter) reportConflicts(inv gpu.Inventory, ours map[string]string) {
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		return // a node with such an inventory offers nothing
	}
	pods := make(map[gpu.UUID][]string)
	for id, pod := range ours {
		if device, err := slots.Device(gpu.SlotID(id)); err == nil && !slices.Contains(pods[device.UUID], pod) {
			pods[device.UUID] = append(pods[device.UUID], pod)
		}
	}
	conflicting := make(map[gpu.UUID]bool)
	for _, d := range inv.Devices {
		if n.nvidiaPods[d.UUID] == "" || len(pods[d.UUID]) == 0 {
			continue
		}
		conflicting[d.UUID] = true
		if n.reported[d.UUID] {
			continue
		}
		slices.Sort(pods[d.UUID])
		n.log.Warn("GPU in use twice", zap.String("device", string(d.UUID)), zap.String("nvidia", n.nvidiaPods[d.UUID]), zap.Strings("pods", pods[d.UUID]))
		n.events.Node(event.Conflict, fmt.Sprintf(
			"GPU %d (%s) is in use twice: as nvidia.com/gpu by pod %s, and as %s by %s. Delete one of them, and split the GPUs between the two device plugins.",
			d.Index, d.UUID, n.nvidiaPods[d.UUID], n.memory, strings.Join(pods[d.UUID], ", ")))
	}
	n.reported = conflicting
}

// Published tracks the GPUs of a node that other drivers of dynamic resource allocation publish.
type Published struct {
	client       kubernetes.Interface
	node, driver string // the node, and gpumem's own driver

	store cache.Store
}

// NewPublished returns a tracker for the GPUs of other drivers. It is empty until Filter.Run watches them.
func NewPublished(client kubernetes.Interface, node, driver string) *Published {
	return &Published{client: client, node: node, driver: driver}
}

// watch waits until the store contains all ResourceSlices of the node. It updates the store until the context is done.
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

// gpus returns the driver of each GPU that other drivers publish.
func (p *Published) gpus() resourceslices.GPUs {
	out := make(resourceslices.GPUs)
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
