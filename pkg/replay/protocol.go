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

// prepare makes a run with the pods of the published one of a seed, in the same order on nodes in the
// same order (Weng et al.).
func prepare(t Trace, policy maker, seed int64) (*run, error) {
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

// Ours is the policy that the extender has where none is asked for.
const Ours = string(placement.Binpack)

// Policies lists the names of the policies that Watch knows: the last two are gpumem's.
func Policies() []string {
	return []string{"best-fit", "device-best-fit", "first-fit", Ours, string(placement.Spread)}
}

// maker makes a policy for one run.
type maker func(Trace, *Fleet) Policy

// named returns what makes the policy of that name.
func named(policy string) (maker, error) {
	switch policy {
	case "best-fit":
		return byScore(bestFit{}), nil
	case "device-best-fit":
		return byScore(deviceBestFit{}), nil
	case "first-fit":
		return byScore(firstFit{}), nil
	case Ours, string(placement.Spread):
		return func(_ Trace, f *Fleet) Policy {
			return newExtended(f, ranking.Policies{GPU: placement.Policy(policy)})
		}, nil
	default:
		return nil, fmt.Errorf("policy %q is not known: want one of %v", policy, Policies())
	}
}

func byScore(s scorer) maker { return func(Trace, *Fleet) Policy { return &first{scorer: s} } }

func newRun(t Trace, order []int, policy maker) (*run, error) {
	f := newFleet(t, order)
	if len(f.models) > maxModels {
		return nil, fmt.Errorf("%s: the fleet has %d models of GPU, want %d at most", t.Name, len(f.models), maxModels)
	}
	return &run{fleet: f, policy: policy(t, f), others: &first{scorer: kubeScheduler{}}}, nil
}
