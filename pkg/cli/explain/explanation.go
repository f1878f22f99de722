package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/doctor"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/printers"
)

// explanation is the command's answer, and defines the answer's JSON form.
type explanation struct {
	APIVersion  string          `json:"apiVersion"`
	Kind        string          `json:"kind"`
	Namespace   string          `json:"namespace"`
	Name        string          `json:"name"`
	Asks        string          `json:"asks,omitempty"`
	Policy      string          `json:"policy,omitempty"`        // set by the pod
	Fallback    string          `json:"clusterPolicy,omitempty"` // for pods that set no policy; empty if unknown
	Node        string          `json:"node,omitempty"`
	Nominated   string          `json:"nominated,omitempty"`
	Indexes     string          `json:"gpus,omitempty"`
	Preferred   []string        `json:"preferred,omitempty"` // for each model that a placed pod prefers to its own: whether the pod fits now; best model first
	Health      string          `json:"health,omitempty"`    // reasons why GPUs of a placed pod take no new pods; empty if all GPUs take pods
	Usage       *printers.Usage `json:"usage,omitempty"`     // of a placed pod; nil if unknown
	State       string          `json:"state,omitempty"`     // reason why a container does not run; empty if all run
	Summary     string          `json:"summary"`
	Advice      string          `json:"advice,omitempty"`      // the remedy
	Evicted     string          `json:"evicted,omitempty"`     // pods that preemption evicted for this pod, according to the Events that the user may read
	Terminating string          `json:"terminating,omitempty"` // terminating pods, and the memory that a waiting pod gains from them
	Replaced    string          `json:"replaced,omitempty"`    // pods of the previous revision that a waiting pod replaces
	Now         []history.Node  `json:"now,omitempty"`         // the nodes' current state for the pod; for a placed pod, only its own node
	Decided     *history.Pod    `json:"decided,omitempty"`     // nil if the scheduler has no record

	hasNoGPU       bool // the pod has no GPU, and will get none
	placedByGPUMem bool // a scheduler that asks gpumem placed the pod
	recordMissing  bool // placedByGPUMem is true, but the scheduler has no record
	cores          bool // some node offers cores
	unitMiB        int64
	granted        inspect.Memory
	omittedNodes   int      // number of nodes that the output omits
	legend         []string // lines under the table of nodes Now

	fitsSomeNode bool // some node has the requested GPU memory, and accepts the pod
	fragmented   bool // some node has enough free memory in all, but not on one GPU
}

// shownNodes is the number of nodes that explain shows without --all. It also limits lists of pods.
const shownNodes = 5

// explainPod explains a pod from the objects of the API server.
func (o *Options) explainPod(ctx context.Context, pod *v1.Pod) (explanation, error) {
	errNoRequest := fmt.Errorf("pod %s/%s asks for no %s%s", pod.Namespace, pod.Name, o.cluster.Names.GPUMem(), o.similarResources(pod))
	if !o.cluster.MayRequestMemory(pod) {
		return explanation{}, errNoRequest
	}
	nodeIndex := cluster.NewNodeIndex()
	unseen := &cluster.AccessLimits{Namespace: pod.Namespace}
	rollouts := make(map[string]rollout) // by UID
	nodes, facts, err := o.cluster.Load(ctx, cluster.Selection{NodeIndex: nodeIndex, Limits: unseen, EachPod: func(p *v1.Pod) {
		if r := rolloutOf(p); r.deployment != "" {
			rollouts[string(p.UID)] = r
		}
	}})
	if err != nil {
		return explanation{}, err
	}
	o.NoteMissing(unseen.MissingParts()...)
	if !nodeIndex.RequestsMemory(o.cluster.Names, pod) {
		return explanation{}, errNoRequest
	}
	e := explanation{
		APIVersion: inspect.APIVersion, Kind: "Explanation", Namespace: pod.Namespace, Name: pod.Name,
		Node: pod.Spec.NodeName, Indexes: pod.Annotations[o.cluster.Names.Index()], State: doctor.Trouble(pod), Evicted: o.evicted(ctx, pod),
	}
	for _, n := range nodes {
		e.unitMiB = cmp.Or(n.UnitMiB, e.unitMiB)
		e.cores = e.cores || facts.Nodes[n.Name].RefusesCores == nil
	}
	waiting := nodeIndex.WaitFacts(o.cluster.Names, pod)
	if !waiting.Request.Empty() {
		e.Asks, e.Policy = renderRequest(waiting.Request, e.unitMiB), string(waiting.Request.Policy)
		if o.ReadPolicy(ctx, o.cluster, &facts) {
			e.Fallback = string(facts.Policy)
		}
	}
	switch {
	case api.Terminal(pod):
		e.hasNoGPU = e.Indexes == ""
		e.Summary, e.Advice = "has ended, and no longer holds GPU memory"+statusReason(pod), o.advice(ctx, pod)
	case pod.Spec.NodeName != "":
		if unseen.Nodes == nil {
			e.State = stateOn(pod.Spec.NodeName, e.State, facts)
		}
		e.placedByGPUMem = o.wasPlacedByGPUMem(pod)
		e.Summary = o.explainPlaced(ctx, &e, pod, waiting, nodes, facts)
	default:
		e.explainWaiting(waiting, nodes, facts, o.all)
		o.setBlockingPods(ctx, &e, waiting, rolloutOf(pod), rollouts, nodes, facts)
		if waiting.InVain != "" && waiting.Problem == "" {
			_, e.Advice = cluster.UnofferedAdvice(o.cluster.Names, nodeIndex.Unoffered(o.cluster.Names, pod))
		}
		if waiting.Nominated != "" && len(e.Now) > 0 {
			e.Nominated, e.Summary = waiting.Nominated, "is nominated to "+waiting.Nominated+", where other pods leave for it, and "+e.Summary
		}
	}
	return e, nil
}

// stateOn returns a pod's state together with a problem of its node.
func stateOn(node, state string, facts inspect.Facts) string {
	switch n, known := facts.Nodes[node]; {
	case !known:
		return "its node is gone: Kubernetes will delete the pod unless the node returns"
	case n.NotReady:
		down := fmt.Sprintf("its node is NotReady, and the pod's state may be out of date: kubectl describe node %s shows the reason", node)
		return strings.TrimSuffix(down+"; "+state, "; ")
	default:
		return state
	}
}

// wasPlacedByGPUMem reports whether a scheduler that asks gpumem placed the pod.
func (o *Options) wasPlacedByGPUMem(pod *v1.Pod) bool {
	a, err := o.cluster.Names.AssignmentOf(pod)
	return err == nil && !a.None() && !a.ByNode
}

// explainPlaced evaluates the node of a placed pod in its current state, and the models that the pod
// prefers. It returns a line that explains the placement.
func (o *Options) explainPlaced(ctx context.Context, e *explanation, pod *v1.Pod, waiting inspect.WaitFacts, nodes []placement.Node, facts inspect.Facts) string {
	_, readErr := o.cluster.Names.Holding(pod)
	if waiting.Problem != "" {
		return "is on a node, but its request cannot be read: " + cluster.OneLine(readErr)
	}
	outcome := o.explainPlacement(ctx, pod)
	if facts.PodsUnknown {
		return outcome + "; the state of its GPUs is unknown without a list of all pods: " + facts.WhyUnknown
	}
	a, err := o.cluster.Names.AssignmentOf(pod)
	if err != nil || a.None() {
		return outcome
	}
	if readErr != nil {
		outcome += "; " + cluster.OneLine(readErr)
	}
	for _, n := range nodes {
		if n.Name == pod.Spec.NodeName && len(n.Devices) > 0 {
			e.setGPUs(a, n, pod, facts.Nodes[n.Name])
			o.measure(ctx, e, pod, a, n)
			e.addNode(describeNode(waiting.Request, n, a, facts.Nodes[n.Name]), n)
			e.Preferred = preferredModels(waiting, n, a, nodes, facts)
		}
	}
	return outcome
}

// measure sets the allocated and the used memory of a placed pod. It ignores errors, because the command top
// reports them.
func (o *Options) measure(ctx context.Context, e *explanation, pod *v1.Pod, a placement.Assignment, n placement.Node) {
	for _, share := range a.Shares {
		e.granted.Units += share.Units
		for _, d := range n.Devices {
			if d.UUID == share.Device {
				e.granted.MiB += d.MiB(share.Units, cmp.Or(a.UnitMiB, n.UnitMiB))
			}
		}
	}
	key, use, known := o.cluster.RecordedUsage(pod)
	if measured, ok := o.cluster.Usage(ctx, n.Name).Pods[key]; ok {
		use, known = measured, true
	}
	if known {
		e.Usage = &use
	}
}

// setGPUs sets the indexes of the pod's GPUs and the faults of these GPUs.
func (e *explanation) setGPUs(a placement.Assignment, n placement.Node, pod *v1.Pod, node inspect.NodeFacts) {
	var indexes, wrong []string
	for _, id := range a.Devices() {
		i := slices.IndexFunc(n.Devices, func(d placement.Device) bool { return d.UUID == id })
		if i < 0 {
			indexes = append(indexes, "?")
			wrong = append(wrong, fmt.Sprintf("it has %s, which the node no longer offers: if that GPU will not return, %s", id, placedAnew))
			continue
		}
		d := n.Devices[i]
		indexes = append(indexes, fmt.Sprint(d.Index))
		switch {
		case d.Status.TakesPods():
		case d.Status.OnlyCordoned():
			wrong = append(wrong, fmt.Sprintf("GPU%d is %s: it takes no new pods, and its present pods stay", d.Index, node.State(d)))
		case !d.Status.Unhealthy:
			wrong = append(wrong, fmt.Sprintf("GPU%d takes no new pods: %s; its present pods keep running", d.Index, node.Causes(d)))
		default:
			wrong = append(wrong, fmt.Sprintf("GPU%d is %s: %s", d.Index, reasons.Status(d.Status), moveOff(pod)))
		}
	}
	e.Indexes, e.Health = strings.Join(indexes, ","), strings.Join(wrong, "; ")
}

// placedAnew is the remedy for a pod that has lost its GPU.
const placedAnew = "delete the pod to have it placed on another GPU, if it fits on one"

// moveOff returns the remedy for a pod on a failed GPU. It does not suggest a drain of the GPU, which
// would evict the other pods on it too.
func moveOff(pod *v1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return placedAnew + ", and create it again: it has no controller"
	}
	return fmt.Sprintf("after kubectl delete pod --namespace %s %s, its %s creates it again on another GPU, if it fits on one", pod.Namespace, pod.Name, owner.Kind)
}

// similarResources names requests that users mistake for a request of GPU memory: an amount of 0, another
// resource of gpumem's domain, or a resource with the same name in another domain.
func (o *Options) similarResources(pod *v1.Pod) string {
	_, short, _ := strings.Cut(string(o.cluster.Names.GPUMem()), "/")
	var similar []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for resource := range c.Resources.Limits {
			if resource == o.cluster.Names.GPUMem() {
				return ": its limit is 0"
			}
			domain, base, _ := strings.Cut(string(resource), "/")
			if (domain == o.cluster.Names.Domain() || base == short) && !slices.Contains(similar, string(resource)) {
				similar = append(similar, string(resource))
			}
		}
	}
	if len(similar) == 0 {
		return ""
	}
	slices.Sort(similar)
	return ", but for " + strings.Join(similar, " and ") + ", which is another resource"
}
