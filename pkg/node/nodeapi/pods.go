package nodeapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/evict"
	"github.com/gpumem/gpumem/pkg/kube/podlabels"
	"github.com/gpumem/gpumem/pkg/kube/trim"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/render"
	"github.com/gpumem/gpumem/pkg/node/usage"
)

// Pods tracks the pods of one node that request GPU memory, or reference ResourceClaims, and have not ended.
type Pods struct {
	client kubernetes.Interface
	names  api.Names
	node   string
	log    *zap.Logger

	trimmer  *trim.Trimmer
	inShares bool
	byClaims bool

	mu      sync.Mutex // guards the rest
	synced  bool
	pods    map[types.NamespacedName]entry
	changed chan struct{} // closed and replaced when pods change

	pendingReads int             // pending calls whose answers contain pods
	removed      map[string]bool // UIDs of pods that were removed during these calls
}

// entry is the last known state of a pod.
type entry struct {
	pod     allocation.Pod
	version string // resource version
	problem string // error in the pod's annotations or requests

	containers map[string]string // container names by ID
	static     string            // for a mirror pod, the kubelet's UID of its static pod

	claims map[string][]string // names of ResourceClaims by container

	disrupted string // reason of the pod's termination by Kubernetes, or ""

	unwatched bool // the watch has not delivered the pod
}

// delivered reports whether the watch has delivered the pod with the UID. The entry of an unknown pod has no UID.
func (e entry) delivered(uid string) bool { return e.pod.Pod.UID == uid && !e.unwatched }

// NewPods returns a view that is empty until Run is called.
func NewPods(client kubernetes.Interface, names api.Names, node string, log *zap.Logger) *Pods {
	return &Pods{
		client: client, names: names, node: node, log: log, trimmer: trim.New(names),
		pods:    make(map[types.NamespacedName]entry),
		changed: make(chan struct{}),
	}
}

// SelectShares selects pods that request shares of GPUs if inShares is true, and otherwise pods that request
// amounts of memory. Pods omits all other pods, because the kubelet allocates nothing of a resource that the node
// does not offer. Call SelectShares before Run.
func (p *Pods) SelectShares(inShares bool) { p.inShares = inShares }

// SelectClaims selects only pods that reference ResourceClaims. Call it before Run.
func (p *Pods) SelectClaims() { p.byClaims = true }

func (p *Pods) isRelevant(pod *v1.Pod) bool {
	if p.byClaims {
		return len(pod.Spec.ResourceClaims) > 0
	}
	return p.names.HoldsHere(pod, p.inShares)
}

// Run watches the pods until the context is done.
func (p *Pods) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(p.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = podSelector(p.node) }),
		informers.WithTransform(p.trim),
	)
	handler, err := factory.Core().V1().Pods().Informer().AddEventHandler(p.Handler())
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	factory.StartWithContext(ctx)
	defer shutdown(factory)
	if cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		p.mu.Lock()
		p.synced = true
		p.signal()
		p.mu.Unlock()
	}
	<-ctx.Done()
	return nil
}

// Handler returns the handler for watch events.
func (p *Pods) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    p.watched,
		UpdateFunc: func(_, obj any) { p.watched(obj) },
		DeleteFunc: p.remove,
	}
}

// Missing returns the reason why the list of pods is incomplete, or an empty string.
func (p *Pods) Missing() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.synced {
		return ""
	}
	return "the pods of node " + p.node + " have not been listed yet"
}

// Pods returns the pods sorted by namespace and name, whether the list is complete, and a channel that is
// closed when the pods or the completeness change.
func (p *Pods) Pods() (pods []allocation.Pod, complete bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.pods {
		pods = append(pods, e.pod)
	}
	slices.SortFunc(pods, func(a, b allocation.Pod) int {
		return cmp.Or(strings.Compare(a.Pod.Namespace, b.Pod.Namespace), strings.Compare(a.Pod.Name, b.Pod.Name))
	})
	return pods, p.synced, p.changed
}

// trim drops the fields of a pod that no reader uses, because the watch stores every pod of the node.
func (p *Pods) trim(obj any) (any, error) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return obj, nil
	}
	out := p.trimmer.Pod(pod)
	if p.byClaims {
		trimClaims(out, pod)
	}
	if p.byClaims || p.names.Holds(pod) {
		copySecondNames(out.Spec.InitContainers, pod.Spec.InitContainers)
		copySecondNames(out.Spec.Containers, pod.Spec.Containers)
		out.Status.InitContainerStatuses = trimStatuses(pod.Status.InitContainerStatuses)
		out.Status.ContainerStatuses = trimStatuses(pod.Status.ContainerStatuses)
		out.Status.EphemeralContainerStatuses = trimStatuses(pod.Status.EphemeralContainerStatuses)
	}
	return out, nil
}

// copySecondNames copies the variables that secondNames reads, from the original containers to the trimmed ones.
func copySecondNames(trimmed, original []v1.Container) {
	for i := range trimmed {
		for _, c := range original {
			for _, e := range c.Env {
				if c.Name == trimmed[i].Name && render.IsSecondName(e.Name) {
					trimmed[i].Env = append(trimmed[i].Env, e)
				}
			}
		}
	}
}

// secondNames returns, by container, the pod's environment variables that are second names of gpumem's variables
// (render.IsSecondName).
func secondNames(pod *v1.Pod) map[string]map[string]string {
	var out map[string]map[string]string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, e := range c.Env {
			if !render.IsSecondName(e.Name) {
				continue
			}
			value := e.Value
			if e.ValueFrom != nil || strings.Contains(value, "$(") { // the value is unknown here: the kubelet resolves references
				value = render.UnknownValue
			}
			if out == nil {
				out = make(map[string]map[string]string)
			}
			if out[c.Name] == nil {
				out[c.Name] = make(map[string]string)
			}
			out[c.Name][e.Name] = value
		}
	}
	return out
}

func trimStatuses(statuses []v1.ContainerStatus) []v1.ContainerStatus {
	var out []v1.ContainerStatus
	for _, s := range statuses {
		trimmed := v1.ContainerStatus{Name: s.Name, ContainerID: s.ContainerID}
		if waits := s.State.Waiting; waits != nil {
			trimmed.State.Waiting = &v1.ContainerStateWaiting{Reason: waits.Reason}
		}
		out = append(out, trimmed)
	}
	return out
}

func key(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// watched stores a pod from the watch.
func (p *Pods) watched(obj any) {
	p.store(obj)
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, ok := p.pods[key(pod)]; ok && e.pod.Pod.UID == string(pod.UID) {
		e.unwatched = false
		p.pods[key(pod)] = e
	}
}

// HasUnwatched reports whether the view contains a pod that the watch has not delivered. If the watch was broken
// at the pod's creation and is still broken at its deletion, the watch never reports the deletion.
func (p *Pods) HasUnwatched() bool {
	_, ok := p.findEntry(func(e entry) bool { return e.unwatched })
	return ok
}

// store stores a pod from the API server.
func (p *Pods) store(obj any) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return
	}
	if !p.isRelevant(pod) || api.Terminal(pod) || pod.Spec.NodeName != p.node {
		p.forget(pod)
		return
	}
	holding, err := placement.Holding{Pod: api.Ref(pod)}, error(nil)
	if !p.byClaims {
		holding, err = p.names.Holding(pod)
	}
	current := entry{
		pod: allocation.Pod{
			Holding: holding, Created: pod.CreationTimestamp.Time, Starting: starting(pod),
			Index: pod.Annotations[p.names.Index()], Seconds: secondNames(pod),
		},
		version:    pod.ResourceVersion,
		containers: containerNames(pod),
		static:     staticUID(pod),
		claims:     claimsOf(pod),
		disrupted:  api.Disruption(pod),
	}
	if err != nil {
		current.problem = err.Error()
	}
	p.mu.Lock()
	previous, known := p.pods[key(pod)]
	if known && previous.pod.Pod.UID == current.pod.Pod.UID && isNewer(previous.version, current.version, false) || p.removed[string(pod.UID)] {
		p.mu.Unlock()
		return
	}
	current.unwatched = !previous.delivered(current.pod.Pod.UID)
	p.pods[key(pod)] = current
	if !known || !reflect.DeepEqual(previous.pod, current.pod) || previous.disrupted != current.disrupted {
		p.signal()
	}
	p.mu.Unlock()
	if current.problem != "" && current.problem != previous.problem {
		p.log.Warn("pod cannot be read in full", zap.Stringer("pod", holding.Pod), zap.String("uid", holding.Pod.UID), zap.Error(err))
	}
}

// starting reports whether the kubelet has admitted a pod and is about to create its containers. A container
// that waits for another reason, such as an image that cannot be pulled, is not starting.
func starting(pod *v1.Pod) bool {
	if !api.Admitted(pod) || pod.Status.Phase != v1.PodPending {
		return false
	}
	statuses := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	return !slices.ContainsFunc(statuses, func(s v1.ContainerStatus) bool {
		waits := s.State.Waiting
		return waits != nil && waits.Reason != "ContainerCreating" && waits.Reason != "PodInitializing"
	})
}

// containerNames maps container IDs to names. The status of a container contains the ID of its current or last
// instance, after the runtime's name: "containerd://ID".
func containerNames(pod *v1.Pod) map[string]string {
	out := make(map[string]string)
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses) {
		if _, id, ok := strings.Cut(s.ContainerID, "://"); ok {
			out[id] = s.Name
		}
	}
	return out
}

// staticUID returns the kubelet's UID of the static pod that a mirror pod represents, or an empty string. This
// UID is a hash of the manifest (k8s.io/kubernetes/pkg/kubelet/config, applyDefaults). Any user can write the
// annotation, but the API server's UIDs have a different form, so the annotation cannot claim another pod's UID.
func staticUID(pod *v1.Pod) string {
	hash := pod.Annotations[v1.MirrorPodAnnotationKey]
	if len(hash) != 32 || strings.Contains(hash, "-") {
		return ""
	}
	return hash
}

// Container returns the pod and the name of a container by its ID.
func (p *Pods) Container(id string) (pod placement.PodRef, name string, ok bool) {
	e, ok := p.findEntry(func(e entry) bool { return e.containers[id] != "" })
	return e.pod.Pod, e.containers[id], ok
}

// HoldsMemory reports whether the pod with this UID holds GPU memory. For a static pod, uid may be the kubelet's UID.
func (p *Pods) HoldsMemory(uid string) bool {
	_, ok := p.findEntry(func(e entry) bool { return e.pod.Pod.UID == uid || e.static != "" && e.static == uid })
	return ok
}

// Disruptions returns the pods that Kubernetes terminates, and a channel that is closed when any pod changes.
func (p *Pods) Disruptions() (out []usage.Disruption, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.pods {
		if e.disrupted != "" {
			out = append(out, usage.Disruption{Pod: e.pod.Pod, Reason: e.disrupted})
		}
	}
	return out, p.changed
}

func (p *Pods) findEntry(match func(entry) bool) (e entry, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.pods {
		if match(e) {
			return e, true
		}
	}
	return entry{}, false
}

func (p *Pods) remove(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if pod, ok := obj.(*v1.Pod); ok {
		p.forget(pod)
	}
}

// beginRead marks the start of a call whose answer contains pods, and returns the function that marks the call's
// end. Meanwhile, forget records the UIDs of removed pods, because the answer may still contain them.
func (p *Pods) beginRead() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pendingReads++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.pendingReads--; p.pendingReads == 0 {
			p.removed = nil
		}
	}
}

// Refresh lists the pods from the API server. Otherwise, changes could stay unknown while a broken watch
// reconnects, which takes up to half a minute.
func (p *Pods) Refresh(ctx context.Context) error {
	defer p.beginRead()()
	list, err := listPods(ctx, p.client, p.node)
	if err != nil {
		return err
	}
	listed := make(map[string]bool, len(list.Items))
	for i := range list.Items {
		pod := &list.Items[i]
		listed[string(pod.UID)] = true
		p.store(pod)
	}
	p.dropBefore(list.ResourceVersion, listed)
	return nil
}

// dropBefore drops the pods that are missing from a list, unless a pod's last known state is newer than the
// list. The list has the resource version `version`, and contains the UIDs in `listed`.
func (p *Pods) dropBefore(version string, listed map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, e := range p.pods {
		if !listed[e.pod.Pod.UID] && !isNewer(e.version, version, true) {
			delete(p.pods, name)
			p.signal()
		}
	}
}

// isNewer reports whether resource version `a` is newer than `b`. If the two cannot be compared, it returns
// `unknown`.
func isNewer(a, b string, unknown bool) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return unknown
	}
	return order > 0
}

// forget drops a pod, unless a new pod of the same name has replaced it.
func (p *Pods) forget(pod *v1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pendingReads > 0 {
		if p.removed == nil {
			p.removed = make(map[string]bool)
		}
		p.removed[string(pod.UID)] = true
	}
	if previous, ok := p.pods[key(pod)]; ok && previous.pod.Pod.UID == string(pod.UID) {
		delete(p.pods, key(pod))
		p.signal()
	}
}

// signal reports a change. The caller must hold the lock.
func (p *Pods) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Correct publishes a pod's assignment to GPUs of an inventory.
func (p *Pods) Correct(ctx context.Context, ref placement.PodRef, a placement.Assignment, inv gpu.Inventory) error {
	node := placement.NewNode(p.node, inv, nil)
	annotations, err := p.names.AssignmentAnnotations(a, node)
	if err != nil {
		return fmt.Errorf("write the assignment of pod %s: %w", ref, err)
	}
	metadata := object{"annotations": annotations}
	if labels := podlabels.ForAssignment(p.names, a, node); labels != nil {
		metadata["labels"] = labels
	}
	defer p.beginRead()()
	pod, err := p.patch(ctx, ref, metadata)
	if err != nil {
		return fmt.Errorf("write the assignment of pod %s: %w", ref, err)
	}
	p.store(pod) // before the watch delivers it
	return nil
}

// RecordUse publishes a pod's current and peak GPU memory usage.
func (p *Pods) RecordUse(ctx context.Context, ref placement.PodRef, usedMiB, peakMiB int64) error {
	value, err := api.EncodeUsage(api.Usage{UsedMiB: usedMiB, PeakMiB: peakMiB, Time: time.Now().UTC().Truncate(time.Second)})
	if err == nil {
		_, err = p.patch(ctx, ref, object{"annotations": object{p.names.Used(): value}})
	}
	if err != nil {
		return fmt.Errorf("write the use of pod %s: %w", ref, err)
	}
	return nil
}

// patch patches the metadata of a pod. The API server rejects the patch if a new pod has the same name.
func (p *Pods) patch(ctx context.Context, ref placement.PodRef, metadata object) (*v1.Pod, error) {
	metadata["uid"] = ref.UID
	data, err := json.Marshal(object{"metadata": metadata})
	if err != nil {
		return nil, err
	}
	return p.client.CoreV1().Pods(ref.Namespace).Patch(ctx, ref.Name, types.MergePatchType, data, metav1.PatchOptions{})
}

// Evict requests the eviction of the pod with this UID, never of a new pod of the same name. It returns an error
// if the pod is gone (package evict). It returns usage.ErrStatic for a static pod: the eviction would only delete
// the mirror pod, which the kubelet would recreate.
func (p *Pods) Evict(ctx context.Context, ref placement.PodRef) error {
	if e, _ := p.findEntry(func(e entry) bool { return e.pod.Pod.UID == ref.UID }); e.static != "" {
		return fmt.Errorf("pod %s: %w", ref, usage.ErrStatic)
	}
	gone, err := evict.Pod(ctx, p.client, ref, nil)
	if gone {
		err = errors.New("it is gone")
	}
	if err != nil {
		return fmt.Errorf("evict pod %s: %w", ref, err)
	}
	return nil
}
