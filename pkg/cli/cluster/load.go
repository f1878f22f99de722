package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/nodefilter"
)

// Selection selects nodes: all, by name, or by label.
type Selection struct {
	Names     []string
	Labels    string
	NodeIndex *NodeIndex // receives the nodes with GPU memory; may be nil

	EachPod  func(*v1.Pod)  // receives each pod for which NodeIndex.RequestsMemory or HasByClaim is true; may be nil
	EachNode func(*v1.Node) // receives each selected node; may be nil

	Limits *AccessLimits // for a user who may not list everything; if nil, a forbidden list of nodes is an error
}

// Load reads nodes and pods into a cache, as the scheduler does. Unreadable objects become problems in the
// returned facts. Load returns an error only if it cannot list the nodes.
func (r *Reader) Load(ctx context.Context, sel Selection) ([]placement.Node, inspect.Facts, error) {
	facts := inspect.Facts{
		Resource: string(r.Names.GPUMem()),
		Selected: len(sel.Names) > 0 || sel.Labels != "",
		Nodes:    make(map[string]inspect.NodeFacts),
	}
	nodeIndex := cmp.Or(sel.NodeIndex, NewNodeIndex())
	nodeIndex.partial = facts.Selected
	inventories, err := r.loadNodes(ctx, sel, nodeIndex, &facts)
	if err = sel.Limits.recordNodesError(err); err != nil {
		return nil, inspect.Facts{}, err
	}
	facts.CoresOff = nodeIndex.CoresOff(r.Names, facts)

	state := cache.New()
	pods, err := r.listAllowedPods(ctx, sel, nodeIndex)
	if err != nil {
		facts.PodsUnknown, facts.WhyUnknown = true, OneLine(err)
		facts.Problems = append(facts.Problems, problem("pods", err))
	}
	if sel.Limits.IsLimited() {
		facts.PodsUnknown, facts.WhyUnknown = true, sel.Limits.reason()
	}
	if sel.Limits.hidesNodes() {
		inventories = inventoriesFromPods(pods.bound, facts.Nodes)
	}
	facts.Pods, facts.Waiting = make(map[string]inspect.PodFacts), pods.waiting
	for _, p := range pods.bound {
		if _, shown := inventories[p.node]; !shown {
			continue
		}
		if p.err != nil {
			pod := p.holding.Pod
			facts.Problems = append(facts.Problems, inspect.Problem{Object: "pod " + pod.String(), Namespace: pod.Namespace, Message: OneLine(p.err)})
		}
		facts.Pods[p.holding.Pod.UID] = p.facts
		state.AddPod(p.node, p.holding)
	}
	if len(pods.waiting) > 0 {
		names, known := r.Schedulers(ctx)
		facts.Schedulers, facts.SchedulersUnknown = names, !known
	}
	maps.Copy(facts.Pods, pods.byClaims)
	for _, w := range pods.waiting {
		if _, shown := inventories[w.Nominated]; shown && !w.Request.Empty() {
			state.NominatePod(w.Nominated, w.Pod, w.Request, w.NominatedGPUs, time.Time{})
		}
	}
	// Add nodes last, so that the cache computes the sums of each node once.
	for name, inv := range inventories {
		if inv.CPU > 0 {
			inv.CPU = max(1, inv.CPU-pods.otherCPU[name])
		}
		state.SetNode(name, inv)
	}
	slices.SortStableFunc(facts.Problems, func(a, b inspect.Problem) int { return cmp.Compare(a.Object, b.Object) })
	return state.Nodes(), facts, nil
}

func problem(object string, err error) inspect.Problem {
	return inspect.Problem{Object: object, Message: OneLine(err)}
}

// loadNodes reads the selected nodes, and returns their inventories.
func (r *Reader) loadNodes(ctx context.Context, sel Selection, nodeIndex *NodeIndex, facts *inspect.Facts) (map[string]gpu.Inventory, error) {
	inventories := make(map[string]gpu.Inventory)
	add := func(node *v1.Node) {
		if sel.EachNode != nil {
			sel.EachNode(node)
		}
		inv, err := r.Names.InventoryOf(node)
		f := nodeFacts(r.Names, node, inv)
		f.NamedByUser = len(sel.Names) > 0
		if err != nil {
			f.Problem = OneLine(err)
			facts.Problems = append(facts.Problems, problem("node "+node.Name, err))
		}
		nodeIndex.Add(node, inv)
		inv.CPU = node.Status.Allocatable.Cpu().MilliValue()
		facts.Nodes[node.Name] = f
		inventories[node.Name] = inv
	}
	if len(sel.Names) == 0 {
		return inventories, unanswered(r.eachNode(ctx, sel.Labels, func() { facts.Problems = nil }, add))
	}
	for _, name := range sel.Names {
		node, err := r.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if isUnanswered(err) {
			return nil, unanswered(err)
		}
		if err != nil {
			facts.Problems = append(facts.Problems, problem("node "+name, err))
			continue
		}
		add(node)
	}
	return inventories, nil
}

// isUnanswered reports whether err means that no API server accepted the connection.
func isUnanswered(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok
}

// unanswered adds the remedy to err if no API server accepted the connection.
func unanswered(err error) error {
	if !isUnanswered(err) {
		return err
	}
	return fmt.Errorf("no API server answers: %w; did you select the right cluster (--kubeconfig, --context)?", err)
}

// loadedPods contains the pods that have GPU memory or request it (see NodeIndex.RequestsMemory and HasByClaim).
type loadedPods struct {
	bound    []boundPod
	waiting  []inspect.WaitFacts
	byClaims map[string]inspect.PodFacts // pods that have GPU memory by claims, by UID

	otherCPU map[string]int64 // CPU of pods without GPU memory, in millicores, by node
}

type boundPod struct {
	node    string
	holding placement.Holding
	indexes []int // of the pod's GPUs, from its annotation
	facts   inspect.PodFacts
	err     error // describes malformed annotations of the pod; holding is valid anyway
}

// listPods lists the pods of a namespace or, if namespace is empty, of all namespaces. It stores little of
// each pod, because a cluster may have many pods without GPU memory.
func (r *Reader) listPods(ctx context.Context, namespace string, nodeIndex *NodeIndex, each func(*v1.Pod)) (loadedPods, error) {
	var out loadedPods
	err := r.eachPod(ctx, namespace, notEndedSelector, func() { out = loadedPods{} }, func(pod *v1.Pod) {
		out.add(r.Names, nodeIndex, pod)
		if each != nil && (nodeIndex.RequestsMemory(r.Names, pod) || nodeIndex.HasByClaim(pod)) {
			each(pod)
		}
	})
	if err != nil {
		return loadedPods{}, err
	}
	return out, nil
}

func (f *loadedPods) add(names api.Names, nodeIndex *NodeIndex, pod *v1.Pod) {
	// A server that does not support the field selector returns ended pods too.
	if api.Terminal(pod) {
		return
	}
	if !nodeIndex.RequestsMemory(names, pod) {
		if f.otherCPU == nil {
			f.otherCPU, f.byClaims = make(map[string]int64), make(map[string]inspect.PodFacts)
		}
		f.otherCPU[pod.Spec.NodeName] += api.CPU(pod)
		if nodeIndex.HasByClaim(pod) {
			f.byClaims[string(pod.UID)] = podFacts(names, pod)
		}
		return
	}
	if pod.Spec.NodeName != "" {
		h, err := names.Holding(pod)
		p := boundPod{node: pod.Spec.NodeName, holding: h, indexes: parseIndexes(pod.Annotations[names.Index()], h.Assignment), facts: podFacts(names, pod), err: err}
		if err != nil {
			p.facts.Problem = OneLine(err)
		}
		f.bound = append(f.bound, p)
		return
	}
	w := nodeIndex.WaitFacts(names, pod)
	if w.Problem == "" && w.InVain == "" && w.Request.Empty() {
		return // the pod requests an amount of zero
	}
	f.waiting = append(f.waiting, w)
}

func nodeFacts(names api.Names, node *v1.Node, inv gpu.Inventory) inspect.NodeFacts {
	f := nodefilter.NodeFacts(names, node, nodefilter.Advertises(names, placement.NewNode(node.Name, inv, nil)))
	f.Status = "Unknown"
	for _, a := range node.Status.Addresses {
		if f.Address == "" || a.Type == v1.NodeInternalIP {
			f.Address = a.Address
		}
		if a.Type == v1.NodeInternalIP {
			break
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == v1.NodeReady {
			f.Status = "Ready"
		}
	}
	if f.NotReady {
		f.Status = "NotReady"
	}
	if node.Spec.Unschedulable {
		f.Status += ",SchedulingDisabled"
	}
	return f
}

func podFacts(names api.Names, pod *v1.Pod) inspect.PodFacts {
	f := inspect.PodFacts{State: string(pod.Status.Phase), Enforcement: enforcementOf(names, pod)}
	switch {
	case pod.DeletionTimestamp != nil:
		f.State = "Terminating"
	case f.State == "":
		f.State = string(v1.PodPending)
	}
	return f
}

// enforcementOf returns the enforcement level that the pod got with its GPUs; empty if unknown. The node may
// have another level by now.
func enforcementOf(names api.Names, pod *v1.Pod) string {
	a, err := names.AssignmentOf(pod)
	if err != nil {
		return ""
	}
	return string(a.Enforcement)
}
