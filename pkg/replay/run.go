package replay

import (
	"math"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Point is the fleet after one arrival, in units.
type Point struct {
	Arrived, Allocated gpu.Units
}

// Arrivals places pods one after the other; none leaves.
type Arrivals struct {
	Capacity gpu.Units
	Points   []Point
	Failed   int       // pods that fitted nowhere
	First    gpu.Units // arrived when the first pod with a GPU fitted nowhere; 0: never
}

// buckets is to where a curve goes, in per cent of the capacity.
const buckets = 130

// Curve returns the allocation, in per cent of the capacity, at each whole per
// cent of arrived demand: the mean of the arrivals that round to it, as the
// published results have it. Buckets into which no arrival falls take those next
// to them, or are NaN.
func (a Arrivals) Curve() []float64 {
	type sum struct {
		total float64
		n     int
	}
	at := make(map[int]sum)
	for _, p := range a.Points {
		bucket := int(math.RoundToEven(100 * float64(p.Arrived) / float64(a.Capacity)))
		s := at[bucket]
		at[bucket] = sum{s.total + hundredth(100*float64(p.Allocated)/float64(a.Capacity)), s.n + 1}
	}
	curve := make([]float64, buckets+1)
	for i := range curve {
		s := at[i]
		if s.n == 0 {
			s = sum{at[i-1].total + at[i+1].total, at[i-1].n + at[i+1].n}
		}
		curve[i] = math.NaN()
		if s.n > 0 {
			curve[i] = hundredth(s.total / float64(s.n))
		}
	}
	return curve
}

func hundredth(x float64) float64 { return math.RoundToEven(x*100) / 100 }

// FirstFailure returns the arrived per cent at the first pod with a GPU that
// fitted nowhere, or at the end when there was none.
func (a Arrivals) FirstFailure() float64 {
	if a.First == 0 && len(a.Points) > 0 {
		return 100 * float64(a.Points[len(a.Points)-1].Arrived) / float64(a.Capacity)
	}
	return 100 * float64(a.First) / float64(a.Capacity)
}

func (r *run) arrivals() (Arrivals, error) {
	out := Arrivals{Capacity: r.fleet.capacity, Points: make([]Point, 0, len(r.pods))}
	arrived := gpu.Units(0)
	for i := range r.pods {
		s := &r.pods[i]
		arrived += s.Total()
		_, ok, err := r.place(i, s)
		if err != nil {
			return Arrivals{}, err
		}
		if !ok {
			out.Failed++
			if s.GPUs > 0 && out.First == 0 {
				out.First = arrived
			}
		}
		if r.watch != nil {
			r.watch(r.fleet, s, arrived, ok)
		}
		out.Points = append(out.Points, Point{Arrived: arrived, Allocated: r.fleet.allocated})
	}
	return out, nil
}

// run is a policy, a fleet and the pods that come to it.
type run struct {
	fleet  *Fleet
	policy Policy
	others Policy // of pods without a GPU
	pods   []shape

	// watch, if set, gets each arrival.
	watch func(f *Fleet, s *shape, arrived gpu.Units, placed bool)
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
	if k, keeps := r.policy.(keeper); keeps {
		if err := k.placed(r.fleet, pod, s, at); err != nil {
			return place{}, false, err
		}
	}
	return at, true, nil
}
