package usage

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Sample is one container's usage and grant on one GPU.
type Sample struct {
	Pod       placement.PodRef
	Container string
	Device    gpu.UUID
	Used      uint64 // bytes
	Granted   uint64
	Peak      uint64 // maximum of Used so far, in bytes
	SM        *int   // percentage of time in which the GPU ran the container's kernels; nil if unknown
}

// key identifies a container on a GPU.
type key struct {
	uid, container string
	device         gpu.UUID
}

func (s Sample) overUse() string {
	return fmt.Sprintf("container %s uses %d MiB of GPU %s and was granted %d MiB", s.Container, s.Used/mib, s.Device, s.Granted/mib)
}

func (s Sample) key() key { return key{s.Pod.UID, s.Container, s.Device} }

func compareSamples(a, b Sample) int {
	return cmp.Or(strings.Compare(a.Pod.String(), b.Pod.String()), strings.Compare(a.Container, b.Container), cmp.Compare(a.Device, b.Device))
}

// Looks is the number of consecutive samples that change a container's state to over its grant, or back.
const Looks = 3

// tracker records which containers are over their grants.
type tracker struct {
	tolerance uint64 // bytes
	states    map[key]state
}

type state struct {
	over  bool
	other int // consecutive samples that contradict over
}

// observe returns the containers that have newly exceeded their grants, those that are within them again, and
// all that currently exceed them.
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
