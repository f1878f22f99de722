package replay

import (
	"container/heap"
	"math/rand/v2"
	"strconv"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// WarmUp and Measured are the parts of a churn run, in mean lifetimes of a pod.
const (
	WarmUp   = 2
	Measured = 3
)

// Departures is what a churn run has seen in its measured part.
type Departures struct {
	Capacity gpu.Units
	Offered  gpu.Units // asked for by the pods that came
	Lost     gpu.Units // asked for by those that were turned away
	Pods     int       // that came
	LostPods int
	InUse    float64 // part of the capacity that was allocated, on average over arrivals
}

// LostPart returns the lost part of the units that were asked for, in per cent.
func (d Departures) LostPart() float64 {
	if d.Offered == 0 {
		return 0
	}
	return 100 * float64(d.Lost) / float64(d.Offered)
}

// Churn runs a policy with pods that leave. They come at random times, each
// drawn from the trace; they stay for an exponential time, and as many come as
// would on average use load times the capacity, were nobody turned away. The
// same pods come for every policy.
func Churn(t Trace, policy string, load float64, seed int64) (Departures, error) {
	policyOf, err := anyPolicy(policy)
	if err != nil {
		return Departures{}, err
	}
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	r, err := newRun(t, random.Perm(len(t.Nodes)), policyOf)
	if err != nil {
		return Departures{}, err
	}
	shapes := make([]shape, len(t.Pods))
	for i, p := range t.Pods {
		shapes[i] = r.fleet.shape(p.Shape)
	}
	rate := load * float64(t.Capacity()) / (float64(t.Demand()) / float64(len(t.Pods)))
	return r.churn(func(now float64) (*shape, float64, float64) {
		return &shapes[random.IntN(len(shapes))], now + random.ExpFloat64()/rate, random.ExpFloat64()
	})
}

// churn places the pods that next makes of the time, with when each comes and
// how long it stays, until the measured part is over.
func (r *run) churn(next func(now float64) (s *shape, comes, stays float64)) (Departures, error) {
	out := Departures{Capacity: r.fleet.capacity}
	var leaving departures
	for pod, now := 0, 0.0; ; pod++ {
		s, comes, stays := next(now)
		if now = comes; now > WarmUp+Measured {
			break
		}
		for len(leaving) > 0 && leaving[0].time <= now {
			r.remove(heap.Pop(&leaving).(departure))
		}
		at, ok, err := r.place(pod, s)
		if err != nil {
			return Departures{}, err
		}
		if ok {
			heap.Push(&leaving, departure{time: now + stays, pod: pod, shape: s, place: at})
		}
		if now > WarmUp {
			out.count(s, ok, r.fleet)
		}
	}
	out.InUse /= float64(max(1, out.Pods))
	return out, nil
}

func (d *Departures) count(s *shape, ok bool, f *Fleet) {
	d.Pods++
	d.Offered += s.Total()
	d.InUse += float64(f.allocated) / float64(f.capacity)
	if !ok {
		d.LostPods++
		d.Lost += s.Total()
	}
}

func (r *run) remove(d departure) {
	r.fleet.take(d.shape, d.place)
	if p, keeps := r.policy.(*extended); keeps {
		p.books.RemovePod(strconv.Itoa(d.pod))
	}
}

// departure is a pod that will leave.
type departure struct {
	time  float64
	pod   int
	shape *shape
	place place
}

// departures is a heap, the earliest first.
type departures []departure

func (d departures) Len() int           { return len(d) }
func (d departures) Less(i, k int) bool { return d[i].time < d[k].time }
func (d departures) Swap(i, k int)      { d[i], d[k] = d[k], d[i] }
func (d *departures) Push(x any)        { *d = append(*d, x.(departure)) }
func (d *departures) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	*d = (*d)[:last]
	return x
}

// take removes a pod from where it was put.
func (f *Fleet) take(s *shape, at place) { f.move(s, at, -1) }
