package packing

import (
	"cmp"
	"math"
	"math/rand" //nolint:depguard // the published runs took their numbers from it
	randv2 "math/rand/v2"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// inflation is the demand of a run, as a multiple of the capacity.
const inflation = 1.3

// maxPercent is the end of a curve, in per cent of the capacity.
const maxPercent = 130

// watches counts the numbers that the published simulator takes from its random stream between the
// pods and the nodes: one for each watch that it starts.
const watches = 10

// run is a policy, a fleet and the pods that arrive.
type run struct {
	fleet  *Fleet
	policy Policy
	others Policy // of pods without a GPU
}

func newRun(t Trace, order []int, policy string, seed int64) (*run, error) {
	f := newFleet(t, order)
	p, err := newPolicy(policy, t, f, seed)
	if err != nil {
		return nil, err
	}
	return &run{fleet: f, policy: p, others: &best{scorer: kubeScheduler{}}}, nil
}

func (r *run) place(pod int, s *shape) (place, bool, error) {
	policy := r.policy
	if s.GPUs == 0 {
		policy = r.others
	}
	at, ok := policy.choose(r.fleet, s)
	if !ok {
		return place{}, false, nil
	}
	if err := r.fleet.put(s, at); err != nil {
		return place{}, false, err
	}
	if p, records := r.policy.(recorder); records {
		if err := p.placed(r.fleet, pod, s, at); err != nil {
			return place{}, false, err
		}
	}
	return at, true, nil
}

// Curve is the allocation in per cent of the capacity at each whole per cent of arrived demand, from
// 0 to maxPercent. It averages the arrivals that round to this per cent, as the published results do.
// A per cent without arrivals takes the arrivals of its neighbours, or else the value before it.
type Curve []float64

// Arrive places pods one after the other. None leaves. As published, the policy also places pods
// without a GPU; otherwise kube-scheduler does.
func Arrive(t Trace, policy string, seed int64, asPublished bool) (Curve, error) {
	random := rand.New(rand.NewSource(seed))
	random.Int()
	pods := drawPods(t, random)
	for range watches {
		random.Float64()
	}
	order := make([]int, len(t.Nodes))
	for i, at := range random.Perm(len(t.Nodes)) {
		order[at] = i
	}
	r, err := newRun(t, order, policy, seed)
	if err != nil {
		return nil, err
	}
	if asPublished {
		r.others = r.policy
	}
	var sums [maxPercent + 3]float64
	var count [maxPercent + 3]int
	capacity, arrived := float64(r.fleet.capacity), gpu.Units(0)
	for pod, i := range pods {
		s := r.fleet.shape(t.Pods[i].Shape)
		arrived += s.Total()
		if _, _, err := r.place(pod, &s); err != nil {
			return nil, err
		}
		if bucket := int(math.RoundToEven(100 * float64(arrived) / capacity)); bucket <= maxPercent+1 {
			sums[bucket+1] += hundredth(100 * float64(r.fleet.allocated) / capacity)
			count[bucket+1]++
		}
	}
	curve := make(Curve, maxPercent+1)
	for i := range curve {
		sum, n := sums[i+1], count[i+1]
		if n == 0 {
			sum, n = sums[i]+sums[i+2], count[i]+count[i+2]
		}
		if n > 0 {
			curve[i] = hundredth(sum / float64(n))
		} else if i > 0 {
			curve[i] = curve[i-1]
		}
	}
	return curve, nil
}

func hundredth(x float64) float64 { return math.RoundToEven(x*100) / 100 }

// drawPods returns the arriving pods in order: all in random order, and more or fewer of them until
// they request inflation times the capacity.
func drawPods(t Trace, random *rand.Rand) []int {
	pods := make([]int, len(t.Pods))
	for i := range pods {
		pods[i] = i
	}
	slices.SortStableFunc(pods, func(a, b int) int { return cmp.Compare(t.Pods[a].Name, t.Pods[b].Name) })
	random.Shuffle(len(pods), func(i, k int) { pods[i], pods[k] = pods[k], pods[i] })
	all := len(pods)
	demand, target := t.Demand(), inflation*float64(t.Capacity())
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
		// This counts one GPU of the pod, and the sum below counts all of them, as in the published runs.
		if float64(demand+gpu.Units(min(1, t.Pods[next].GPUs))*t.Pods[next].Units) > target {
			return pods
		}
		demand += t.Pods[next].Total()
		pods = append(pods, next)
	}
}

// warmUp and measured are the parts of a run with departures, in mean lifetimes of a pod.
const (
	warmUp   = 2
	measured = 3
)

// Churn returns the rejected part of the requested memory, in per cent, when pods leave. Pods arrive at
// random times, each drawn from the trace, and stay for an exponential time. Without rejections they
// would on average use load times the capacity. Every policy gets the same pods.
func Churn(t Trace, policy string, load float64, seed int64) (float64, error) {
	random := randv2.New(randv2.NewPCG(uint64(seed), 0))
	r, err := newRun(t, random.Perm(len(t.Nodes)), policy, seed)
	if err != nil {
		return 0, err
	}
	shapes := make([]shape, len(t.Pods))
	for i, p := range t.Pods {
		shapes[i] = r.fleet.shape(p.Shape)
	}
	rate := load * float64(t.Capacity()) / (float64(t.Demand()) / float64(len(t.Pods)))
	var leaving []departure // by time
	var requested, rejected gpu.Units
	for pod, now := 0, 0.0; ; pod++ {
		s := &shapes[random.IntN(len(shapes))]
		now += random.ExpFloat64() / rate
		stays := random.ExpFloat64()
		if now > warmUp+measured {
			break
		}
		for len(leaving) > 0 && leaving[0].time <= now {
			r.remove(leaving[0])
			leaving = leaving[1:]
		}
		at, ok, err := r.place(pod, s)
		if err != nil {
			return 0, err
		}
		if ok {
			d := departure{time: now + stays, pod: pod, shape: s, place: at}
			i, _ := slices.BinarySearchFunc(leaving, d, func(a, b departure) int { return cmp.Compare(a.time, b.time) })
			leaving = slices.Insert(leaving, i, d)
		}
		if now > warmUp {
			requested += s.Total()
			if !ok {
				rejected += s.Total()
			}
		}
	}
	return 100 * float64(rejected) / float64(max(1, requested)), nil
}

func (r *run) remove(d departure) {
	r.fleet.move(d.shape, d.place, -1)
	if p, records := r.policy.(recorder); records {
		p.removed(d.pod)
	}
}

// departure is a pod that will leave.
type departure struct {
	time  float64
	pod   int
	shape *shape
	place place
}
