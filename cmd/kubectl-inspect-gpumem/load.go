package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/cache"
	"github.com/gpumem/gpumem/pkg/doctor"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/inspect"
	"github.com/gpumem/gpumem/pkg/placement"
	"github.com/gpumem/gpumem/pkg/reach"
)

// selection is which nodes to look at: all, or by name, or by label.
type selection struct {
	names  []string
	labels string
	where  *places // gets the nodes with GPU memory; nil: nobody asks for them

	eachPod  func(*v1.Pod)  // is told of each pod that asks for GPU memory, or was meant to; nil: nobody is
	eachNode func(*v1.Node) // the same of nodes
}

// load reads nodes and pods and keeps the scheduler's books of them. What
// cannot be read becomes a problem among the facts; without nodes, there is
// nothing to show, and that is the error.
func load(ctx context.Context, client kubernetes.Interface, names api.Names, sel selection) ([]placement.Node, inspect.Facts, error) {
	facts := inspect.Facts{
		Resource: string(names.GPUMem()),
		Selected: len(sel.names) > 0 || sel.labels != "",
		Nodes:    make(map[string]inspect.NodeFacts),
	}
	problem := func(object string, err error) {
		facts.Problems = append(facts.Problems, inspect.Problem{Object: object, Message: oneLine(err)})
	}

	inventories := make(map[string]gpu.Inventory)
	where := cmp.Or(sel.where, newPlaces())
	where.partial = facts.Selected
	addNode := func(node *v1.Node) {
		if sel.eachNode != nil {
			sel.eachNode(node)
		}
		inv, err := names.InventoryOf(node)
		f := nodeFacts(names, node, inv)
		f.Wanted = len(sel.names) > 0
		if err != nil {
			f.Problem = oneLine(err)
			problem("node "+node.Name, err)
		}
		where.add(node, inv)
		inv.CPU = node.Status.Allocatable.Cpu().MilliValue()
		facts.Nodes[node.Name] = f
		inventories[node.Name] = inv
	}
	restart := func() { facts.Problems = nil }
	if err := eachNode(ctx, client, sel, addNode, restart, problem); err != nil {
		return nil, inspect.Facts{}, err
	}

	facts.CoresOff = where.CoresOff(names, facts)

	books := cache.New()
	pods, err := listPods(ctx, client, names, where, sel.eachPod)
	if err != nil {
		facts.PodsUnknown, facts.WhyUnknown = true, oneLine(err)
		problem("pods", err)
	}
	facts.Pods, facts.Waiting = make(map[string]inspect.PodFacts), pods.waiting
	for _, p := range pods.bound {
		if _, shown := inventories[p.node]; !shown {
			continue
		}
		if p.err != nil {
			pod := p.holding.Pod
			facts.Problems = append(facts.Problems, inspect.Problem{Object: "pod " + pod.String(), Namespace: pod.Namespace, Message: oneLine(p.err)})
		}
		facts.Pods[p.holding.Pod.UID] = p.facts
		books.AddPod(p.node, p.holding)
	}
	if len(pods.waiting) > 0 {
		facts.Schedulers = schedulers(ctx, client, names)
	}
	for _, w := range pods.waiting {
		if _, shown := inventories[w.Nominated]; shown && !w.Request.Empty() {
			books.NominatePod(w.Nominated, w.Pod, w.Request, w.At)
		}
	}
	// Nodes come last, so that the cache does the sums of each node once.
	for name, inv := range inventories {
		if inv.CPU > 0 {
			inv.CPU = max(1, inv.CPU-pods.otherCPU[name])
		}
		books.SetNode(name, inv)
	}
	slices.SortStableFunc(facts.Problems, func(a, b inspect.Problem) int { return cmp.Compare(a.Object, b.Object) })
	return books.Nodes(), facts, nil
}

func eachNode(ctx context.Context, client kubernetes.Interface, sel selection, add func(*v1.Node), restart func(), problem func(string, error)) error {
	if len(sel.names) == 0 {
		return list(ctx, metav1.ListOptions{LabelSelector: sel.labels}, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Nodes().List(ctx, opts)
		}, restart, func(obj runtime.Object) {
			if node, ok := obj.(*v1.Node); ok {
				add(node)
			}
		})
	}
	for _, name := range sel.names {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			problem("node "+name, err)
			continue
		}
		add(node)
	}
	return nil
}

// found are the pods that hold GPU memory or ask for it, or were meant to.
type found struct {
	bound   []boundPod
	waiting []inspect.WaitFacts

	otherCPU map[string]int64 // of pods without GPU memory, in millicores, by node
}

type boundPod struct {
	node    string
	holding placement.Holding
	facts   inspect.PodFacts
	err     error // what could not be read; the holding is good all the same
}

// notEnded selects pods whose containers may still run.
const notEnded = "status.phase!=" + string(v1.PodSucceeded) + ",status.phase!=" + string(v1.PodFailed)

// listPods reads all pods and keeps little of each: a cluster may have very
// many of them, and few that matter here.
func listPods(ctx context.Context, client kubernetes.Interface, names api.Names, where *places, each func(*v1.Pod)) (found, error) {
	var out found
	opts := metav1.ListOptions{FieldSelector: notEnded}
	err := list(ctx, opts, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, opts)
	}, func() { out = found{} }, func(obj runtime.Object) {
		if pod, ok := obj.(*v1.Pod); ok {
			out.add(names, where, pod)
			if each != nil && asksFor(names, where, pod) {
				each(pod)
			}
		}
	})
	if err != nil {
		return found{}, err
	}
	return out, nil
}

func (f *found) add(names api.Names, where *places, pod *v1.Pod) {
	// Not every server knows the field selector.
	if api.Terminal(pod) {
		return
	}
	if !asksFor(names, where, pod) {
		if f.otherCPU == nil {
			f.otherCPU = make(map[string]int64)
		}
		f.otherCPU[pod.Spec.NodeName] += api.CPU(pod)
		return
	}
	if pod.Spec.NodeName != "" {
		h, err := names.Holding(pod)
		p := boundPod{node: pod.Spec.NodeName, holding: h, facts: podFacts(names, pod), err: err}
		if err != nil {
			p.facts.Problem = oneLine(err)
		}
		f.bound = append(f.bound, p)
		return
	}
	w := waitFacts(names, where, pod)
	if w.Problem == "" && w.InVain == "" && w.Request.Empty() {
		return // it names an amount of zero
	}
	f.waiting = append(f.waiting, w)
}

// asksFor reports whether a pod asks for GPU memory, or waits for what was meant to be it.
func asksFor(names api.Names, where *places, pod *v1.Pod) bool {
	return names.Asks(pod) || where.unoffered(names, pod) != ""
}

func waitFacts(names api.Names, where *places, pod *v1.Pod) inspect.WaitFacts {
	w := where.WaitFacts(names, pod)
	if resource := where.unoffered(names, pod); resource != "" {
		w.InVain, _ = doctor.WaitsInVain(names, resource)
	}
	return w
}

// schedulers returns the names of those that ask gpumem. Not everybody may read
// where they stand, and nothing else depends on them.
func schedulers(ctx context.Context, client kubernetes.Interface, names api.Names) []string {
	configs, err := client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: ofGPUMem})
	if err != nil {
		return nil
	}
	return doctor.Schedulers(names.GPUMem(), configs.Items)
}

// list calls each for all objects, page by page. When the server has forgotten
// where it was, it starts over without pages.
func list(ctx context.Context, opts metav1.ListOptions, page pager.ListPageFunc, restart func(), each func(runtime.Object)) error {
	visit := func(obj runtime.Object) error { each(obj); return nil }
	err := pager.New(page).EachListItem(ctx, opts, visit)
	if !apierrors.IsResourceExpired(err) {
		return err
	}
	restart()
	whole := pager.New(page)
	whole.PageSize = 0
	return whole.EachListItem(ctx, opts, visit)
}

func nodeFacts(names api.Names, node *v1.Node, inv gpu.Inventory) inspect.NodeFacts {
	f := reach.NodeFacts(names, node, inv.Advertised())
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

// enforcementOf returns the level that the pod was given with its GPUs: its
// node may have another by now. It is empty when that is not known.
func enforcementOf(names api.Names, pod *v1.Pod) string {
	a, err := names.AssignmentOf(pod)
	if err != nil {
		return ""
	}
	return string(a.Enforcement)
}

// oneLine is an error for a line of its own: joined errors have several.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
