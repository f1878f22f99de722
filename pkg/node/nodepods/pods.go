package nodepods

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/core/allocation"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/podlabels"
	"github.com/gpumem/gpumem/pkg/kube/trim"
)

// Pods are the pods of one node that hold GPU memory, or name ResourceClaims, and have not ended.
type Pods struct {
	client kubernetes.Interface
	names  api.Names
	node   string
	log    *zap.Logger

	trimmer  *trim.Trimmer
	inShares bool // those count that hold shares
	byClaims bool // those count that name ResourceClaims, and no others

	mu      sync.Mutex // guards the rest
	synced  bool
	pods    map[types.NamespacedName]entry
	changed chan struct{} // closed and replaced when pods change

	asking int             // calls under way whose answers have pods
	gone   map[string]bool // UIDs that the watch has taken away meanwhile
}

// entry is one pod as last seen.
type entry struct {
	pod     allocation.Pod
	version string // resource version
	problem string // what of it cannot be read

	containers map[string]string // names by ID
	static     string            // the kubelet's UID of the static pod that this one mirrors

	claims map[string][]string // names of ResourceClaims by container
}

// NewPods returns a view that is empty until it runs.
func NewPods(client kubernetes.Interface, names api.Names, node string, log *zap.Logger) *Pods {
	return &Pods{
		client: client, names: names, node: node, log: log, trimmer: trim.New(names),
		pods:    make(map[types.NamespacedName]entry),
		changed: make(chan struct{}),
	}
}

// InShares has those count, where it is so, that hold shares of GPUs, and not those that hold amounts of memory: of what a
// node does not offer, the kubelet gives nothing. It is called before Run.
func (p *Pods) InShares(is bool) { p.inShares = is }

// ByClaims makes the pods count that name ResourceClaims, and no others. It is called before Run.
func (p *Pods) ByClaims() { p.byClaims = true }

// counts reports whether a pod counts on this node.
func (p *Pods) counts(pod *v1.Pod) bool {
	if p.byClaims {
		return len(pod.Spec.ResourceClaims) > 0
	}
	return p.names.HoldsHere(pod, p.inShares)
}

// selector is of the node's pods that have not ended.
func (p *Pods) selector() string {
	return fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", p.node),
		fields.OneTermNotEqualSelector("status.phase", string(v1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(v1.PodFailed)),
	).String()
}

// Run watches until the context is done.
func (p *Pods) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(p.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = p.selector() }),
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

// Handler takes in what a watch tells of pods.
func (p *Pods) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    p.put,
		UpdateFunc: func(_, obj any) { p.put(obj) },
		DeleteFunc: p.remove,
	}
}

// Missing says what is missing before the pods can be relied on.
func (p *Pods) Missing() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.synced {
		return ""
	}
	return "the pods of node " + p.node + " have not been listed yet"
}

// Pods returns the pods, by namespace and name, whether they are all of them,
// and a channel that is closed when something of this has changed.
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

// trim keeps of a pod what is read here: the watch holds every pod of the node.
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
		out.Status.InitContainerStatuses = trimStatuses(pod.Status.InitContainerStatuses)
		out.Status.ContainerStatuses = trimStatuses(pod.Status.ContainerStatuses)
		out.Status.EphemeralContainerStatuses = trimStatuses(pod.Status.EphemeralContainerStatuses)
	}
	return out, nil
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

// put takes in a pod as the API server has it.
func (p *Pods) put(obj any) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return
	}
	if !p.counts(pod) || api.Terminal(pod) || pod.Spec.NodeName != p.node {
		p.forget(pod)
		return
	}
	holding, err := placement.Holding{Pod: api.Ref(pod)}, error(nil)
	if !p.byClaims {
		holding, err = p.names.Holding(pod)
	}
	now := entry{
		pod: allocation.Pod{
			Holding: holding, Created: pod.CreationTimestamp.Time, Starting: starting(pod),
			Index: pod.Annotations[p.names.Index()],
		},
		version:    pod.ResourceVersion,
		containers: containerNames(pod),
		static:     staticUID(pod),
		claims:     claimsOf(pod),
	}
	if err != nil {
		now.problem = err.Error()
	}
	p.mu.Lock()
	was, known := p.pods[key(pod)]
	if known && was.newer(now) || p.gone[string(pod.UID)] {
		p.mu.Unlock()
		return
	}
	p.pods[key(pod)] = now
	if !known || !reflect.DeepEqual(was.pod, now.pod) {
		p.signal()
	}
	p.mu.Unlock()
	if now.problem != "" && now.problem != was.problem {
		p.log.Warn("pod cannot be read in full", zap.Stringer("pod", holding.Pod), zap.String("uid", holding.Pod.UID), zap.Error(err))
	}
}

// starting reports whether the kubelet has admitted a pod and is about to make containers of
// it: none of them waits for something else, as an image that cannot be pulled.
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

// containerNames returns the names of the containers that run, or ran last, by
// their IDs. The status has these with the runtime's name: "containerd://ID".
func containerNames(pod *v1.Pod) map[string]string {
	out := make(map[string]string)
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses) {
		if _, id, ok := strings.Cut(s.ContainerID, "://"); ok {
			out[id] = s.Name
		}
	}
	return out
}

// staticUID returns the UID that the kubelet gave to the static pod that a pod mirrors: a hash of
// its manifest (k8s.io/kubernetes/pkg/kubelet/config, applyDefaults). Anybody can write the
// annotation, but the API server's UIDs are of another form: none can be claimed by it.
func staticUID(pod *v1.Pod) string {
	hash := pod.Annotations[v1.MirrorPodAnnotationKey]
	if len(hash) != 32 || strings.Contains(hash, "-") {
		return ""
	}
	return hash
}

// Container returns the pod and the name of a container by its ID.
func (p *Pods) Container(id string) (pod placement.PodRef, name string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.pods {
		if name, ok := e.containers[id]; ok {
			return e.pod.Pod, name, true
		}
	}
	return placement.PodRef{}, "", false
}

// isStatic reports whether a pod mirrors a static pod of the kubelet.
func (p *Pods) isStatic(uid string) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.pods {
		if e.pod.Pod.UID == uid {
			return e.static != ""
		}
	}
	return false
}

// Holds reports whether the pod with that UID, or the static pod to which the kubelet gave it,
// holds GPU memory.
func (p *Pods) Holds(uid string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.pods {
		if e.pod.Pod.UID == uid || e.static != "" && e.static == uid {
			return true
		}
	}
	return false
}

// newer reports whether e is the same pod at a later time than another entry.
func (e entry) newer(than entry) bool {
	if e.pod.Pod.UID != than.pod.Pod.UID {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(e.version, than.version)
	return err == nil && order > 0
}

func (p *Pods) remove(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if pod, ok := obj.(*v1.Pod); ok {
		p.forget(pod)
	}
}

// ask begins a call whose answer has pods: the watch may have taken them away by then. It returns
// what ends it.
func (p *Pods) ask() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asking++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.asking--; p.asking == 0 {
			p.gone = nil
		}
	}
}

// Refresh reads the pods from the API server itself. A watch that was broken
// waits for up to half a minute before it is made again.
func (p *Pods) Refresh(ctx context.Context) error {
	defer p.ask()()
	list, err := p.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: p.selector()})
	if err != nil {
		return fmt.Errorf("list the pods of node %s: %w", p.node, err)
	}
	there := make(map[string]bool, len(list.Items))
	for i := range list.Items {
		pod := &list.Items[i]
		there[string(pod.UID)] = true
		p.put(pod)
	}
	p.dropBefore(list.ResourceVersion, there)
	return nil
}

// dropBefore drops the pods that a list of that version lacks.
func (p *Pods) dropBefore(version string, there map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, e := range p.pods {
		if !there[e.pod.Pod.UID] && !e.after(version) {
			delete(p.pods, name)
			p.signal()
		}
	}
}

// after reports whether an entry is later than a list of that version.
func (e entry) after(version string) bool {
	order, err := resourceversion.CompareResourceVersion(e.version, version)
	return err != nil || order > 0
}

// forget drops a pod, but not one that was made again under its name.
func (p *Pods) forget(pod *v1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking > 0 {
		if p.gone == nil {
			p.gone = make(map[string]bool)
		}
		p.gone[string(pod.UID)] = true
	}
	if was, ok := p.pods[key(pod)]; ok && was.pod.Pod.UID == string(pod.UID) {
		delete(p.pods, key(pod))
		p.signal()
	}
}

// signal tells that something changed. The lock must be taken.
func (p *Pods) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Correct writes which GPUs of an inventory a pod has. The API server refuses
// it when the pod of that name is another by now.
func (p *Pods) Correct(ctx context.Context, ref placement.PodRef, a placement.Assignment, inv gpu.Inventory) error {
	node := placement.NewNode(p.node, inv, nil)
	annotations, err := p.names.AssignmentAnnotations(a, node)
	if err != nil {
		return fmt.Errorf("write the assignment of pod %s: %w", ref, err)
	}
	metadata := map[string]any{"uid": ref.UID, "annotations": annotations}
	if labels := podlabels.Of(p.names, a, node); labels != nil {
		metadata["labels"] = labels
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("write the assignment of pod %s: %w", ref, err)
	}
	defer p.ask()()
	pod, err := p.client.CoreV1().Pods(ref.Namespace).Patch(ctx, ref.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("write the assignment of pod %s: %w", ref, err)
	}
	p.put(pod) // the watch brings it too, but later
	return nil
}
