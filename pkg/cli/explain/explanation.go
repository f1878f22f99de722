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
	"github.com/gpumem/gpumem/pkg/report/decisions"
	"github.com/gpumem/gpumem/pkg/report/doctor"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/printers"
)

// explanation is what explain tells, for programs too.
type explanation struct {
	APIVersion  string           `json:"apiVersion"`
	Kind        string           `json:"kind"`
	Namespace   string           `json:"namespace"`
	Name        string           `json:"name"`
	Asks        string           `json:"asks,omitempty"`
	Policy      string           `json:"policy,omitempty"`        // that the pod names
	Fallback    string           `json:"clusterPolicy,omitempty"` // of pods that name none; empty when not known
	Node        string           `json:"node,omitempty"`
	Nominated   string           `json:"nominated,omitempty"`
	Indexes     string           `json:"gpus,omitempty"`
	Preferred   []string         `json:"preferred,omitempty"` // how models are now that a placed pod likes better than its own, the one that it likes best first
	Health      string           `json:"health,omitempty"`    // why GPUs of a placed pod take no new ones; empty where they do
	Usage       *printers.Usage  `json:"usage,omitempty"`     // of a pod that is placed; nil when not known
	State       string           `json:"state,omitempty"`     // what keeps a container from running; empty when nothing does
	Summary     string           `json:"summary"`
	Advice      string           `json:"advice,omitempty"`      // what to do about it
	Evicted     string           `json:"evicted,omitempty"`     // pods that preemption evicted for it, by the Events that may be read
	Terminating string           `json:"terminating,omitempty"` // pods that leave, and what they give back to one that waits
	Replaced    string           `json:"replaced,omitempty"`    // pods of the revision before, which one that waits replaces
	Now         []decisions.Node `json:"now,omitempty"`         // nodes as they are for the pod; of one that is placed, its own
	Decided     *decisions.Pod   `json:"decided,omitempty"`     // nil when no extender remembers it

	gpuless   bool // the pod has no GPU, and gets none
	asked     bool // a scheduler has asked an extender, and placed it
	forgotten bool // which remembers nothing of it
	cores     bool // some node offers them
	unitMiB   int64
	granted   inspect.Memory
	more      int // nodes that are left out

	fits       bool // some node has the GPU memory that it asks for, and takes it
	fragmented bool // some node has enough free in all, and on no GPU
}

// shownNodes is how many nodes explain shows unless all are asked for.
const shownNodes = 5

// explanationOf is what the objects of the API server say of a pod.
func (o *Options) explanationOf(ctx context.Context, pod *v1.Pod) (explanation, error) {
	none := fmt.Errorf("pod %s/%s asks for no %s%s", pod.Namespace, pod.Name, o.cluster.Names.GPUMem(), o.nearMisses(pod))
	if !o.cluster.PerhapsAsks(pod) {
		return explanation{}, none
	}
	where := cluster.NewPlaces()
	unseen := &cluster.Unseen{Namespace: pod.Namespace}
	rollouts := make(map[string]rollout) // by UID
	nodes, facts, err := o.cluster.Load(ctx, cluster.Selection{Where: where, Unseen: unseen, EachPod: func(p *v1.Pod) {
		if r := rolloutOf(p); r.deployment != "" {
			rollouts[string(p.UID)] = r
		}
	}})
	if err != nil {
		return explanation{}, err
	}
	o.Limit(unseen.Parts()...)
	if !where.AsksFor(o.cluster.Names, pod) {
		return explanation{}, none
	}
	e := explanation{
		APIVersion: inspect.APIVersion, Kind: "Explanation", Namespace: pod.Namespace, Name: pod.Name,
		Node: pod.Spec.NodeName, Indexes: pod.Annotations[o.cluster.Names.Index()], State: doctor.Trouble(pod), Evicted: o.evicted(ctx, pod),
	}
	for _, n := range nodes {
		e.unitMiB = cmp.Or(n.UnitMiB, e.unitMiB)
		e.cores = e.cores || facts.Nodes[n.Name].RefusesCores == nil
	}
	asks := where.WaitFacts(o.cluster.Names, pod)
	if !asks.Request.Empty() {
		e.Asks, e.Policy = asksOf(asks.Request, e.unitMiB), string(asks.Request.Policy)
		if o.LearnPolicy(ctx, o.cluster, &facts) {
			e.Fallback = string(facts.Policy)
		}
	}
	switch {
	case api.Terminal(pod):
		e.gpuless = e.Indexes == ""
		e.Summary, e.Advice = "has ended, and no longer holds GPU memory"+why(pod), o.advice(ctx, pod)
	case pod.Spec.NodeName != "":
		if unseen.Nodes == nil {
			e.State = stateOn(pod.Spec.NodeName, e.State, facts)
		}
		e.asked = o.askedFor(pod)
		e.Summary = o.lookThere(ctx, &e, pod, asks, nodes, facts)
	default:
		e.consider(asks, nodes, facts, o.all)
		e.lookInTheWay(asks, rolloutOf(pod), rollouts, nodes, facts)
		if asks.InVain != "" && asks.Problem == "" {
			_, e.Advice = cluster.WaitsInVain(o.cluster.Names, where.Unoffered(o.cluster.Names, pod))
		}
		if asks.Nominated != "" && len(e.Now) > 0 {
			e.Nominated, e.Summary = asks.Nominated, "is nominated to "+asks.Nominated+", where other pods leave for it, and "+e.Summary
		}
	}
	return e, nil
}

// stateOn returns the state of a pod with that of its node, where the node has a problem.
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

// askedFor reports whether a scheduler has asked gpumem about a placed pod.
func (o *Options) askedFor(pod *v1.Pod) bool {
	a, err := o.cluster.Names.AssignmentOf(pod)
	return err == nil && !a.None() && !a.ByNode
}

// lookThere looks at the node of a placed pod as it is now, and at what it would have liked
// better, and says in a line why the pod is there.
func (o *Options) lookThere(ctx context.Context, e *explanation, pod *v1.Pod, asks inspect.WaitFacts, nodes []placement.Node, facts inspect.Facts) string {
	_, unread := o.cluster.Names.Holding(pod)
	if asks.Problem != "" {
		return "is on a node, and its request cannot be read: " + cluster.OneLine(unread)
	}
	there := o.whyThere(ctx, pod)
	if facts.PodsUnknown {
		return there + "; the state of its GPUs is unknown without a list of all pods: " + facts.WhyUnknown
	}
	a, err := o.cluster.Names.AssignmentOf(pod)
	if err != nil || a.None() {
		return there
	}
	if unread != nil {
		there += "; " + cluster.OneLine(unread)
	}
	for _, n := range nodes {
		if n.Name == pod.Spec.NodeName && len(n.Devices) > 0 {
			e.has(a, n, pod, facts.Nodes[n.Name])
			o.measure(ctx, e, pod, a, n)
			e.Now = append(e.Now, look(asks.Request, n, a, facts.Nodes[n.Name]))
			e.Preferred = preferred(asks, n, a, nodes, facts)
		}
	}
	return there
}

// measure asks what a placed pod uses of its share of its node's GPUs. What cannot be read is left
// out: top says why.
func (o *Options) measure(ctx context.Context, e *explanation, pod *v1.Pod, a placement.Assignment, n placement.Node) {
	for _, share := range a.Shares {
		e.granted.Units += share.Units
		for _, d := range n.Devices {
			if d.UUID == share.Device {
				e.granted.MiB += d.MiB(share.Units, cmp.Or(a.UnitMiB, n.UnitMiB))
			}
		}
	}
	key, use, known := o.cluster.Recorded(pod)
	if measured, ok := o.cluster.Usage(ctx, n.Name).Pods[key]; ok {
		use, known = measured, true
	}
	if known {
		e.Usage = &use
	}
}

// has tells which GPUs of its node a pod has, and what is wrong with them.
func (e *explanation) has(a placement.Assignment, n placement.Node, pod *v1.Pod, node inspect.NodeFacts) {
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
			wrong = append(wrong, fmt.Sprintf("GPU%d takes no new pods, for %s; its present pods keep running", d.Index, node.Causes(d)))
		default:
			wrong = append(wrong, fmt.Sprintf("GPU%d is %s: %s", d.Index, reasons.Status(d.Status), moveOff(pod)))
		}
	}
	e.Indexes, e.Health = strings.Join(indexes, ","), strings.Join(wrong, "; ")
}

// placedAnew is what becomes of a pod that loses its GPU.
const placedAnew = "delete the pod to have it placed on another GPU, if it fits on one"

// moveOff says how a pod comes off a GPU that has failed. A drain of the GPU would ask what is to
// become of the others on it.
func moveOff(pod *v1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return placedAnew + ", and create it again: it has no controller"
	}
	return fmt.Sprintf("after kubectl delete pod --namespace %s %s, its %s creates it again on another GPU, if it fits on one", pod.Namespace, pod.Name, owner.Kind)
}

// nearMisses says what a pod that asks for no GPU memory does ask for that is
// easily taken for it: 0 of it, or a resource of gpumem's domain or of its name.
func (o *Options) nearMisses(pod *v1.Pod) string {
	_, short, _ := strings.Cut(string(o.cluster.Names.GPUMem()), "/")
	var near []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for resource := range c.Resources.Limits {
			if resource == o.cluster.Names.GPUMem() {
				return ": it asks for 0 of it"
			}
			domain, base, _ := strings.Cut(string(resource), "/")
			if (domain == o.cluster.Names.Domain() || base == short) && !slices.Contains(near, string(resource)) {
				near = append(near, string(resource))
			}
		}
	}
	if len(near) == 0 {
		return ""
	}
	slices.Sort(near)
	return ", but for " + strings.Join(near, " and ") + ", which is another resource"
}
