package placement

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// Budget says how many of certain pods may still be disrupted at will, as a
// PodDisruptionBudget does.
type Budget struct {
	Pods    []string // UIDs
	Allowed int
}

// Victims are pods of a node that are to be evicted for another one.
type Victims struct {
	Pods       []Holding // the most important first
	Violations int       // how many of the evictions are beyond a budget
}

// Preempt chooses whom to evict from a node so that the request fits it: pods
// of lower priority, as few and as unimportant as there are, on the GPUs where
// that costs the least (see Cheaper). It reports false when no eviction helps.
//
// Proposed are the pods that kube-scheduler would evict, with and without a GPU.
// Whom it proposes only for the node's sum of GPU memory to fit is replaced by
// pods of one GPU. Whom the sum does not explain stands in the way of something
// that is not to be seen here, like CPU, and is evicted too. Where that alone
// makes room on a GPU, nothing is to be chosen, and all that are proposed go.
func Preempt(req Request, node Node, proposed []Holding, budgets []Budget) (Victims, bool) {
	kept := unexplained(req, node, proposed, budgets)
	rest := node.Without(kept)
	if Fit(req, rest).Fits() {
		return newVictims(proposed, budgets), true
	}
	chosen, ok := makeRoom(req, rest, budgets)
	if !ok {
		return Victims{}, false
	}
	return newVictims(slices.Concat(kept, chosen), budgets), true
}

func newVictims(pods []Holding, budgets []Budget) Victims {
	pods = slices.Clone(pods)
	slices.SortFunc(pods, MoreImportant)
	return Victims{Pods: pods, Violations: Violations(pods, budgets)}
}

// Violations counts the pods whose eviction is beyond a budget, when they are
// evicted in this order. Pods that are being deleted already are beyond none.
func Violations(pods []Holding, budgets []Budget) int {
	evicted := slices.DeleteFunc(slices.Clone(pods), func(h Holding) bool { return h.Terminating })
	beyond, _ := spend(evicted, budgets)
	return len(beyond)
}

// spend takes pods off the budgets that they are under, one after the other, and
// returns those whom one of these did not allow, and the rest.
func spend(pods []Holding, budgets []Budget) (beyond, within []Holding) {
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

// MoreImportant orders pods as kube-scheduler does: by priority, then by age.
// (k8s.io/kubernetes/pkg/scheduler/util, MoreImportantPod)
func MoreImportant(a, b Holding) int {
	return cmp.Or(
		cmp.Compare(b.Request.Priority, a.Request.Priority),
		CompareBool(a.Started.IsZero(), b.Started.IsZero()),
		a.Started.Compare(b.Started),
		a.Pod.Compare(b.Pod),
	)
}

// moreWorth orders pods by what their eviction would cost: one that is being
// deleted costs nothing, and of equal priority the smaller ones stay, for then
// the fewest have to go.
func moreWorth(a, b Holding) int {
	return cmp.Or(
		CompareBool(a.Terminating, b.Terminating),
		cmp.Compare(b.Request.Priority, a.Request.Priority),
		cmp.Compare(a.Request.Units(), b.Request.Units()),
		MoreImportant(a, b),
	)
}

// unexplained returns those of the proposed pods that kube-scheduler would not
// evict if it were for the node's sums alone: those that hold no GPU of it, and
// of the others whom it would put back. It does as kube-scheduler does: without
// all pods that may be evicted, each in turn is put back if it can be.
// (SelectVictimsOnNode of
// k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption)
func unexplained(req Request, node Node, proposed []Holding, budgets []Budget) (out []Holding) {
	pods := byWorth(node.holdings(below(req)), budgets, MoreImportant)
	for _, h := range proposed {
		if !hasPod(pods, h) {
			out = append(out, h)
		}
	}
	free := node.Without(pods).sum()
	for _, h := range pods {
		left := room{units: free.units - h.Request.Units(), cores: free.cores - h.Request.Cores()}
		switch {
		case !hasPod(proposed, h):
			free = left
		case left.units >= req.Units() && (req.Cores() == 0 || left.cores >= req.Cores()):
			out = append(out, h)
		}
	}
	return out
}

// sum is what kube-scheduler takes to be free on the node: what its healthy
// devices offer, less what all its pods hold. It may be negative.
func (n Node) sum() (free room) {
	for _, d := range n.Devices {
		free.cores -= d.RequestedCores
		if d.Healthy {
			free.units += d.Capacity
			free.cores += gpu.CoresPerDevice
		}
	}
	for _, h := range n.Unattributed {
		free.cores -= h.Request.Cores()
	}
	free.units -= n.Requested()
	return free
}

// makeRoom returns the pods that must leave for a request that does not fit the
// node. It begins with each device in turn and goes on where it costs the least,
// for pods may hold several devices.
func makeRoom(req Request, node Node, budgets []Budget) (victims []Holding, ok bool) {
	_, victims, ok = cheapest(node.Devices, budgets, func(first gpu.UUID) ([]Holding, bool) {
		return makeRoomFrom(first, req, node, budgets)
	})
	return victims, ok
}

func makeRoomFrom(device gpu.UUID, req Request, node Node, budgets []Budget) ([]Holding, bool) {
	one := req.ofOneGPU()
	cleared := []gpu.UUID{device}
	gone, ok := clearDevice(device, one, node, budgets)
	for ok && len(cleared) < req.GPUs() {
		left := node.Without(gone)
		others := slices.DeleteFunc(slices.Clone(left.Devices), func(d Device) bool { return slices.Contains(cleared, d.UUID) })
		var next []Holding
		device, next, ok = cheapest(others, budgets, func(next gpu.UUID) ([]Holding, bool) {
			return clearDevice(next, one, left, budgets)
		})
		cleared, gone = append(cleared, device), append(gone, next...)
	}
	if !ok {
		return nil, false
	}
	return reprieve(req, node, byWorth(gone, budgets, moreWorth))
}

// cheapest returns the device on which it costs the least to make room, and who
// must leave for that.
func cheapest(devices []Device, budgets []Budget, makeRoom func(gpu.UUID) ([]Holding, bool)) (device gpu.UUID, victims []Holding, ok bool) {
	for _, d := range devices {
		pods, fits := makeRoom(d.UUID)
		if fits && (!ok || Cheaper(pods, victims, budgets) < 0) {
			device, victims, ok = d.UUID, pods, true
		}
	}
	return device, victims, ok
}

// clearDevice returns the pods that must leave one device for a request of one.
func clearDevice(device gpu.UUID, one Request, node Node, budgets []Budget) ([]Holding, bool) {
	alone := node.only(device)
	return reprieve(one, alone, byWorth(alone.holdings(below(one)), budgets, moreWorth))
}

// ofOneGPU is what a request wants of each of its GPUs.
func (r Request) ofOneGPU() Request {
	units, cores := r.Share()
	r.Containers, r.Count = []Container{{Kind: App, Units: units, Cores: cores}}, 1
	return r
}

// below tells the pods that may be evicted for a request.
func below(req Request) func(Holding) bool {
	return func(h Holding) bool { return h.Request.Priority < req.Priority }
}

// reprieve returns those of the pods without whom the request fits the node, when
// each in turn stays if it can. It reports false when the request does not fit
// without any of them.
func reprieve(req Request, node Node, pods []Holding) (victims []Holding, ok bool) {
	fits := func(gone []Holding) bool { return Fit(req, node.Without(gone)).Fits() }
	if !fits(pods) {
		return nil, false
	}
	victims = pods
	for _, h := range pods {
		others := except(victims, h)
		if fits(others) {
			victims = others
		}
	}
	return victims, true
}

func except(pods []Holding, h Holding) []Holding {
	return slices.DeleteFunc(slices.Clone(pods), func(p Holding) bool { return p.Pod.UID == h.Pod.UID })
}

// byWorth orders pods for reprieve: those first that are beyond a budget.
func byWorth(pods []Holding, budgets []Budget, compare func(a, b Holding) int) []Holding {
	slices.SortFunc(pods, compare)
	beyond, within := spend(pods, budgets)
	return append(beyond, within...)
}

// Cheaper orders sets of victims as kube-scheduler orders nodes: by budgets
// violated, by the highest priority, by the sum of priorities, which is first of
// all their number; then by the memory that they hold. Pods that are being
// deleted cost nothing. (k8s.io/kubernetes/pkg/scheduler/framework/preemption,
// pickOneNodeForPreemption)
func Cheaper(a, b []Holding, budgets []Budget) int {
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

func newCost(victims []Holding, budgets []Budget) cost {
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
