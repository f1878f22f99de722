package preemption

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Budget limits the voluntary disruptions of a set of pods, as a PodDisruptionBudget does.
type Budget struct {
	Pods    []string // UIDs
	Allowed int
}

// ProtectedPods returns the UIDs of pods for which a budget allows no eviction.
func ProtectedPods(budgets []Budget) map[string]bool {
	guarded := make(map[string]bool)
	for _, b := range budgets {
		if b.Allowed > 0 {
			continue
		}
		for _, uid := range b.Pods {
			guarded[uid] = true
		}
	}
	return guarded
}

// Victims are the pods of a node to evict for another pod.
type Victims struct {
	Pods       []placement.Holding // the most important first
	Violations int                 // number of evictions that exceed a budget
}

// Preempt picks the pods to evict from a node so that the request fits. It picks pods of lower priority,
// as few and as unimportant as possible, from the GPUs with the lowest cost (see Cheaper). It returns
// false if no eviction helps.
//
// Parameter proposed lists the pods that kube-scheduler would evict, with and without GPUs. Preempt
// replaces pods that are proposed only for the node's sum of GPU memory by pods of one GPU. It does not
// replace pods that are proposed for other resources, such as CPU. If the eviction of these pods alone
// lets the request fit, Preempt returns all proposed pods.
func Preempt(req placement.Request, node placement.Node, proposed []placement.Holding, budgets []Budget) (Victims, bool) {
	kept := unexplained(req, node, proposed, budgets)
	rest := node.Without(kept)
	if placement.Fit(req, rest).Fits() {
		return newVictims(proposed, budgets), true
	}
	chosen, ok := makeRoom(req, rest, budgets)
	if !ok {
		return Victims{}, false
	}
	gone := slices.Concat(kept, chosen)
	if !node.Without(gone).InSum(req) && placement.Fit(req, node.Without(proposed)).Fits() {
		// The eviction of gone frees enough on a GPU, but not in the node's sum, which an over-committed or
		// failed GPU reduces. The eviction of the proposed pods frees enough on a GPU and in the sum.
		gone = proposed
	}
	return newVictims(gone, budgets), true
}

func newVictims(pods []placement.Holding, budgets []Budget) Victims {
	pods = slices.Clone(pods)
	slices.SortFunc(pods, placement.MoreImportant)
	return Victims{Pods: pods, Violations: Violations(pods, budgets)}
}

// Violations counts the evictions that exceed a budget when the pods are evicted in this order. A
// terminating pod exceeds no budget.
func Violations(pods []placement.Holding, budgets []Budget) int {
	evicted := slices.DeleteFunc(slices.Clone(pods), func(h placement.Holding) bool { return h.Terminating })
	beyond, _ := spend(evicted, budgets)
	return len(beyond)
}

// spend charges the pods to their budgets in order. It returns the pods that exceed a budget and the
// others.
func spend(pods []placement.Holding, budgets []Budget) (beyond, within []placement.Holding) {
	spent := make([]int, len(budgets))
	for _, h := range pods {
		allowed := true
		for i, b := range budgets {
			if slices.Contains(b.Pods, h.Pod.UID) {
				spent[i]++
				allowed = allowed && spent[i] <= b.Allowed
			}
		}
		if allowed {
			within = append(within, h)
		} else {
			beyond = append(beyond, h)
		}
	}
	return beyond, within
}

// moreWorth orders pods by the cost of their eviction, the highest first. A terminating pod costs
// nothing. In this order, reprieve tries to keep the pods. Among pods of equal priority the smaller ones
// come first and stay: if larger pods leave, fewer evictions are enough.
func moreWorth(a, b placement.Holding) int {
	return cmp.Or(
		placement.CompareBool(a.Terminating, b.Terminating),
		cmp.Compare(b.Request.Priority, a.Request.Priority),
		cmp.Compare(a.Request.Units(), b.Request.Units()),
		placement.MoreImportant(a, b),
	)
}

// unexplained returns the proposed pods that the node's sums of GPU memory and cores do not explain: pods
// without GPU memory on the node, and pods that a simulation with these sums puts back. Like
// kube-scheduler's simulation, it removes all pods that may be evicted, and puts each back if the request
// still fits. (SelectVictimsOnNode in k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption)
func unexplained(req placement.Request, node placement.Node, proposed []placement.Holding, budgets []Budget) (out []placement.Holding) {
	pods := inTurn(evictable(req, node), proposed, budgets)
	for _, h := range proposed {
		if !placement.HasPod(pods, h) {
			out = append(out, h)
		}
	}
	units, cores := node.Without(pods).Unrequested()
	for _, h := range pods {
		lessUnits, lessCores := units-h.Request.Units(), cores-h.Request.Cores()
		switch {
		case !placement.HasPod(proposed, h):
			units, cores = lessUnits, lessCores
		case lessUnits >= req.Units() && (req.Cores() == 0 || lessCores >= req.Cores()):
			out = append(out, h)
		}
	}
	return out
}

// inTurn orders pods as kube-scheduler's simulation puts them back: first pods that exceed a budget,
// then by importance. kube-scheduler's order is undefined for pods of equal priority that started in
// the same second, as the pods of a Deployment often do. Among such pods, inTurn assumes the order that
// explains the proposal: it charges the proposed pods to the budgets first, and puts them back last.
func inTurn(pods, proposed []placement.Holding, budgets []Budget) []placement.Holding {
	order := func(pods []placement.Holding, proposedFirst bool) {
		slices.SortFunc(pods, func(a, b placement.Holding) int {
			return cmp.Or(
				placement.CompareImportance(a, b),
				placement.CompareBool(placement.HasPod(proposed, a) != proposedFirst, placement.HasPod(proposed, b) != proposedFirst),
			)
		})
	}
	order(pods, true)
	beyond, within := spend(pods, budgets)
	order(beyond, false)
	order(within, false)
	return append(beyond, within...)
}

// makeRoom returns the pods to evict for a request that does not fit the node. For several GPUs, it tries
// each device as the first, and then repeatedly adds the device that costs least. The first device
// matters, because the eviction of a pod with several devices also frees memory on the others.
func makeRoom(req placement.Request, node placement.Node, budgets []Budget) (victims []placement.Holding, ok bool) {
	node = node.Only(slices.DeleteFunc(slices.Clone(node.Devices), func(d placement.Device) bool { return !req.Allows(d) })...)
	_, victims, ok = cheapest(node.Devices, budgets, func(first placement.Device) ([]placement.Holding, bool) {
		return makeRoomFrom(first, req, node, budgets)
	})
	return victims, ok
}

func makeRoomFrom(first placement.Device, req placement.Request, node placement.Node, budgets []Budget) ([]placement.Holding, bool) {
	one := ofOneGPU(req)
	cleared := []gpu.UUID{first.UUID}
	gone, ok := clearDevice(first, one, node, budgets)
	if !ok {
		return nil, false
	}
	for len(cleared) < req.GPUs() {
		left := node.Without(gone)
		others := slices.DeleteFunc(slices.Clone(left.Devices), func(d placement.Device) bool { return slices.Contains(cleared, d.UUID) })
		next, more, ok := cheapest(others, budgets, func(d placement.Device) ([]placement.Holding, bool) {
			return clearDevice(d, one, left, budgets)
		})
		if !ok {
			return nil, false
		}
		cleared, gone = append(cleared, next.UUID), append(gone, more...)
	}
	return reprieve(req, node, byWorth(gone, budgets, moreWorth))
}

// cheapest returns the device whose victims cost the least (see Cheaper), and these victims.
func cheapest(devices []placement.Device, budgets []Budget, makeRoom func(placement.Device) ([]placement.Holding, bool)) (device placement.Device, victims []placement.Holding, ok bool) {
	for _, d := range devices {
		pods, fits := makeRoom(d)
		if fits && (!ok || Cheaper(pods, victims, budgets) < 0) {
			device, victims, ok = d, pods, true
		}
	}
	return device, victims, ok
}

// clearDevice returns the pods to evict from one device for a request for one GPU.
func clearDevice(device placement.Device, one placement.Request, node placement.Node, budgets []Budget) ([]placement.Holding, bool) {
	alone := node.Only(device)
	return reprieve(one, alone, byWorth(evictable(one, alone), budgets, moreWorth))
}

// ofOneGPU returns the request for one of several GPUs: all containers run on each GPU, with an equal
// part of their requests.
func ofOneGPU(r placement.Request) placement.Request {
	n := r.GPUs()
	r.Containers, r.Count = r.Containers.Each(func(c *placement.Container) {
		c.Units, c.Cores = (c.Units+gpu.Units(n)-1)/gpu.Units(n), (c.Cores+n-1)/n
	}), 1
	return r
}

// evictable returns the pods of a node that a request may evict. It leaves out pods that are known from
// the inventory only, such as pods with claims, because their priority is unknown.
func evictable(req placement.Request, node placement.Node) []placement.Holding {
	return slices.DeleteFunc(node.Holdings(), func(h placement.Holding) bool {
		return h.Request.Empty() || h.Request.Priority >= req.Priority
	})
}

// reprieve returns the pods to evict so that the request fits the node. In the given order, it keeps
// each pod on the node if the request still fits. It returns false if the request does not fit even
// after the eviction of all given pods.
func reprieve(req placement.Request, node placement.Node, pods []placement.Holding) (victims []placement.Holding, ok bool) {
	fits := func(gone []placement.Holding) bool { return placement.Fit(req, node.Without(gone)).Fits() }
	if !fits(pods) {
		return nil, false
	}
	victims = pods
	for _, h := range pods {
		others := slices.DeleteFunc(slices.Clone(victims), func(o placement.Holding) bool { return o.Pod.UID == h.Pod.UID })
		if fits(others) {
			victims = others
		}
	}
	return victims, true
}

// byWorth orders pods for reprieve: pods that exceed a budget come first.
func byWorth(pods []placement.Holding, budgets []Budget, compare func(a, b placement.Holding) int) []placement.Holding {
	slices.SortFunc(pods, compare)
	beyond, within := spend(pods, budgets)
	return append(beyond, within...)
}

// Cheaper orders sets of victims as kube-scheduler orders nodes: by the number of evictions that exceed
// a budget, by the highest priority, by the sum of priorities, which mostly reflects the number of
// pods, and then by memory. Terminating pods cost nothing. (pickOneNodeForPreemption in
// k8s.io/kubernetes/pkg/scheduler/framework/preemption)
func Cheaper(a, b []placement.Holding, budgets []Budget) int {
	x, y := newCost(a, budgets), newCost(b, budgets)
	return cmp.Or(
		cmp.Compare(x.violations, y.violations),
		cmp.Compare(x.highest, y.highest),
		cmp.Compare(x.priorities, y.priorities),
		cmp.Compare(x.units, y.units),
	)
}

type cost struct {
	violations int
	highest    int64
	priorities int64 // sum of the distances from the lowest priority
	units      gpu.Units
}

func newCost(victims []placement.Holding, budgets []Budget) cost {
	c := cost{violations: Violations(victims, budgets), highest: math.MinInt64}
	for _, h := range victims {
		if h.Terminating {
			continue
		}
		priority := int64(h.Request.Priority)
		c.highest = max(c.highest, priority)
		c.priorities += priority - math.MinInt32 + 1
		c.units += h.Request.Units()
	}
	return c
}
