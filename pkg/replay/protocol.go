package replay

import (
	"cmp"
	"fmt"
	"math/rand" //nolint:depguard // the published runs took their numbers from it
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
)

// Inflation is the demand of a published run, as a multiple of the capacity.
const Inflation = 1.3

// watches is how many numbers the published simulator takes from its random
// stream between the pods and the nodes: one for each watch that it starts.
const watches = 10

// Published runs a policy as the published simulator does: the same pods in the
// same order on nodes in the same order, for a seed. The policy places pods without a
// GPU, too.
func Published(t Trace, policy string, seed int64) (Arrivals, error) {
	r, err := prepare(t, policy, seed)
	if err != nil {
		return Arrivals{}, err
	}
	r.others = r.policy
	return r.arrivals()
}

// Arrive places the pods of Published, but leaves those without a GPU to kube-scheduler.
func Arrive(t Trace, policy string, seed int64) (Arrivals, error) {
	r, err := prepare(t, policy, seed)
	if err != nil {
		return Arrivals{}, err
	}
	return r.arrivals()
}

func prepare(t Trace, policy string, seed int64) (*run, error) {
	random := rand.New(rand.NewSource(seed))
	random.Int()
	pods := tune(t, random)
	for range watches {
		random.Float64()
	}
	order := make([]int, len(t.Nodes))
	for i, at := range random.Perm(len(t.Nodes)) {
		order[at] = i
	}
	r, err := newRun(t, order, policy)
	if err != nil {
		return nil, err
	}
	for _, i := range pods {
		r.pods = append(r.pods, r.fleet.shape(t.Pods[i].Shape))
	}
	return r, nil
}

// tune returns which pods come, in order: all in random order, and more or
// fewer of them until they ask for Inflation times the capacity.
func tune(t Trace, random *rand.Rand) []int {
	pods := make([]int, len(t.Pods))
	for i := range pods {
		pods[i] = i
	}
	slices.SortStableFunc(pods, func(a, b int) int { return cmp.Compare(t.Pods[a].Name, t.Pods[b].Name) })
	random.Shuffle(len(pods), func(i, k int) { pods[i], pods[k] = pods[k], pods[i] })
	all := len(pods)
	demand, target := t.Demand(), Inflation*float64(t.Capacity())
	for float64(demand) > target {
		at := random.Intn(len(pods))
		demand -= t.Pods[pods[at]].Total()
		pods = append(pods[:at], pods[at+1:]...)
	}
	if len(pods) < all {
		return pods
	}
	for {
		next := random.Intn(all)
		// One GPU of the pod counts here, and all of them below: so it was published.
		if float64(demand+gpu.Units(min(1, t.Pods[next].GPUs))*t.Pods[next].Units) > target {
			return pods
		}
		demand += t.Pods[next].Total()
		pods = append(pods, next)
	}
}

// Policies lists the names of the policies that Published and Churn know.
func Policies() []string {
	return []string{"dot-product", "clustering", "packing", "best-fit", "fgd", "device-best-fit", "first-fit", "binpack", "spread"}
}

func newRun(t Trace, order []int, policy string) (*run, error) {
	f := newFleet(t, order)
	if len(f.models) > maxModels {
		return nil, fmt.Errorf("%s: the fleet has %d models of GPU, want %d at most", t.Name, len(f.models), maxModels)
	}
	r := &run{fleet: f, others: &first{scorer: kubeScheduler{}}}
	switch policy {
	case "dot-product":
		r.policy = &first{scorer: dotProduct{}}
	case "clustering":
		r.policy = &first{scorer: clustering{}}
	case "packing":
		r.policy = &first{scorer: packing{}}
	case "best-fit":
		r.policy = &first{scorer: bestFit{}}
	case "fgd":
		r.policy = &first{scorer: newFGD(t, f)}
	case "device-best-fit":
		r.policy = &first{scorer: deviceBestFit{}}
	case "first-fit":
		r.policy = &first{scorer: firstFit{}}
	case "binpack", "spread":
		r.policy = newExtended(f, ranking.Policies{GPU: placement.Policy(policy)})
	default:
		return nil, fmt.Errorf("policy %q is not known: want one of %v", policy, Policies())
	}
	return r, nil
}
