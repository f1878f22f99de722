package usage

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Sample is what one container uses of one GPU, and what it was granted of it.
type Sample struct {
	Pod       placement.PodRef
	Container string
	Device    gpu.UUID
	Used      uint64 // bytes
	Granted   uint64
	Peak      uint64 // the most that was seen
	SM        *int   // per cent of the time in which the GPU ran kernels of it; nil: not known
}

// key is whom a sample is of.
type key struct {
	uid, container string
	device         gpu.UUID
}

func (s Sample) key() key { return key{s.Pod.UID, s.Container, s.Device} }

func compareSamples(a, b Sample) int {
	return cmp.Or(strings.Compare(a.Pod.String(), b.Pod.String()), strings.Compare(a.Container, b.Container), cmp.Compare(a.Device, b.Device))
}

// Looks is how many times in a row a container must be found over its grant to be
// over it, and within it to be within it again.
const Looks = 3

// tracker knows which containers are over their grants.
type tracker struct {
	tolerance uint64 // bytes
	states    map[key]state
}

// state is what is known of a container on a GPU.
type state struct {
	over  bool
	other int // looks in a row that said otherwise
}

// observe takes in one look and returns the containers that have gone over their
// grants, those that are within them again, and all that are over.
func (t *tracker) observe(samples []Sample) (gone, back, over []Sample) {
	seen := make(map[key]bool)
	for _, s := range samples {
		seen[s.key()] = true
		was := t.states[s.key()]
		now := was
		if exceeds := s.Used > s.Granted && s.Used-s.Granted > t.tolerance; exceeds == was.over {
			now.other = 0
		} else if now.other++; now.other >= Looks {
			now = state{over: exceeds}
		}
		t.states[s.key()] = now
		switch {
		case now.over && !was.over:
			gone = append(gone, s)
		case !now.over && was.over:
			back = append(back, s)
		}
		if now.over {
			over = append(over, s)
		}
	}
	maps.DeleteFunc(t.states, func(k key, _ state) bool { return !seen[k] })
	for _, list := range [][]Sample{gone, back, over} {
		slices.SortFunc(list, compareSamples)
	}
	return gone, back, over
}
