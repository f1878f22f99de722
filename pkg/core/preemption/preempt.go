package preemption

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Budget says how many of certain pods may still be disrupted at will, as a
// PodDisruptionBudget does.
type Budget struct {
	Pods    []string // UIDs
	Allowed int
}

// Guarded returns the UIDs of pods that a budget allows no eviction of.
func Guarded(budgets []Budget) map[string]bool {
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

// Victims are pods of a node that are to be evicted for another one.
type Victims struct {
	Pods       []placement.Holding // the most important first
	Violations int                 // how many of the evictions are beyond a budget
}

// Preempt chooses whom to evict from a node so that the request fits it: pods
// of lower priority, as few and as unimportant as there are, on the GPUs where
// that costs the least (see Cheaper). It reports false when no eviction helps.
//
// Proposed are the pods that kube-scheduler would evict, with and without a GPU.
// Those that it proposes for the node's sum of GPU memory alone are replaced by
// pods of one GPU. Those that it needs for something else, like CPU, are
// evicted too. Where these alone free enough on a GPU, all that are proposed go.
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
		gone = proposed // which make up for a GPU that is over-committed, or out of use
	}
	return newVictims(gone, budgets), true
}

func newVictims(pods []placement.Holding, budgets []Budget) Victims {
	pods = slices.Clone(pods)
	slices.SortFunc(pods, placement.MoreImportant)
	return Victims{Pods: pods, Violations: Violations(pods, budgets)}
}

// Violations counts the pods whose eviction is beyond a budget, when they are
// evicted in this order. Pods that are being deleted already are beyond none.
func Violations(pods []placement.Holding, budgets []Budget) int {
	evicted := slices.DeleteFunc(slices.Clone(pods), func(h placement.Holding) bool { return h.Terminating })
	beyond, _ := spend(evicted, budgets)
	return len(beyond)
}

// spend takes pods off the budgets that they are under, one after the other, and
// returns those whom one of these did not allow, and the rest.
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

// moreWorth orders pods by what their eviction would cost: one that is being
// deleted costs nothing, and of equal priority the smaller ones stay, for then
// the fewest have to go.
func moreWorth(a, b placement.Holding) int {
	return cmp.Or(
		placement.CompareBool(a.Terminating, b.Terminating),
		cmp.Compare(b.Request.Priority, a.Request.Priority),
		cmp.Compare(a.Request.Units(), b.Request.Units()),
		placement.MoreImportant(a, b),
	)
}

// unexplained returns those of the proposed pods that kube-scheduler would not
// evict if it were for the node's sums alone: those that hold no GPU of it, and
// of the others whom it would put back. It does as kube-scheduler does: without
// all pods that may be evicted, each in turn is put back if it can be.
// (SelectVictimsOnNode of
// k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption)
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

// inTurn orders pods as kube-scheduler puts them back: those first that are beyond
// a budget, then the more important. Pods of one priority that started in one
// second, as those of a Deployment do, it puts into any order. Of these the one
// that explains what is proposed is taken: the budgets were spent on the proposed
// pods, and the others were put back before them.
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

// makeRoom returns the pods that must leave for a request that does not fit the
// node. It begins with each device in turn and goes on where it costs the least,
// for pods may hold several devices.
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

// cheapest returns the device on which it costs the least to free enough, and who
// must leave for that.
func cheapest(devices []placement.Device, budgets []Budget, makeRoom func(placement.Device) ([]placement.Holding, bool)) (device placement.Device, victims []placement.Holding, ok bool) {
	for _, d := range devices {
		pods, fits := makeRoom(d)
		if fits && (!ok || Cheaper(pods, victims, budgets) < 0) {
			device, victims, ok = d, pods, true
		}
	}
	return device, victims, ok
}

// clearDevice returns the pods that must leave one device for a request of one.
func clearDevice(device placement.Device, one placement.Request, node placement.Node, budgets []Budget) ([]placement.Holding, bool) {
	alone := node.Only(device)
	return reprieve(one, alone, byWorth(evictable(one, alone), budgets, moreWorth))
}

// ofOneGPU is what a request wants of each of its GPUs: all containers run on each, with a part
// of what they ask for.
func ofOneGPU(r placement.Request) placement.Request {
	n := r.GPUs()
	r.Containers, r.Count = r.Containers.Each(func(c *placement.Container) {
		c.Units, c.Cores = (c.Units+gpu.Units(n)-1)/gpu.Units(n), (c.Cores+n-1)/n
	}), 1
	return r
}

// evictable returns the pods of a node that may be evicted for a request. The priority of a pod is
// unknown that is in the inventory alone, as those with claims.
func evictable(req placement.Request, node placement.Node) []placement.Holding {
	return slices.DeleteFunc(node.Holdings(), func(h placement.Holding) bool {
		return h.Request.Empty() || h.Request.Priority >= req.Priority
	})
}

// reprieve returns those of the pods without whom the request fits the node, when
// each in turn is kept if it can be. It reports false when the request does not fit
// without any of them.
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

// byWorth orders pods for reprieve: those first that are beyond a budget.
func byWorth(pods []placement.Holding, budgets []Budget, compare func(a, b placement.Holding) int) []placement.Holding {
	slices.SortFunc(pods, compare)
	beyond, within := spend(pods, budgets)
	return append(beyond, within...)
}

// Cheaper orders sets of victims as kube-scheduler orders nodes: by budgets
// violated, by the highest priority, by the sum of priorities, which is first of
// all their number; then by the memory that they hold. Pods that are being
// deleted cost nothing. (k8s.io/kubernetes/pkg/scheduler/framework/preemption,
// pickOneNodeForPreemption)
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
	priorities int64 // each above the lowest there is
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
