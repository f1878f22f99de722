package placement_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// given returns the kubelet's allocation for a named pod on one GPU.
func given(name string, index int, units gpu.Units, cores int) gpu.PodAllocation {
	return gpu.PodAllocation{UID: name, Shares: []gpu.Share{{Device: uuid(index), Units: units, Cores: cores}}}
}

// If the inventory records a larger allocation of a GPU than the pod's annotations, the larger amount is
// charged to the GPU. In kube-scheduler's sum the pod counts once.
func TestWhatTheKubeletHasGivenCounts(t *testing.T) {
	inv := inventory(device(0, 16), device(1, 16), device(2, 16))
	eighth := hold("p", ask(16, cores(60), count(2)), 1, 2) // 8 units each on GPUs 1 and 2
	other := hold("o", ask(4, cores(10)), 0)
	type on struct {
		Requested gpu.Units
		Cores     int
		Pods      int
	}
	for name, tc := range map[string]struct {
		given    []gpu.PodAllocation
		holdings []placement.Holding
		want     []on
		sum      gpu.Units
		without  gpu.Units // of GPU 0 without the pod
	}{
		"nothing is said":               {nil, []placement.Holding{eighth, other}, []on{{4, 10, 1}, {8, 30, 1}, {8, 30, 1}}, 28, 4},
		"of another GPU":                {[]gpu.PodAllocation{given("p", 0, 16, 60)}, []placement.Holding{eighth, other}, []on{{20, 70, 2}, {8, 30, 1}, {8, 30, 1}}, 28, 4},
		"more of a GPU that is written": {[]gpu.PodAllocation{given("p", 1, 16, 60)}, []placement.Holding{eighth, other}, []on{{4, 10, 1}, {16, 60, 1}, {8, 30, 1}}, 28, 4},
		"more cores alone":              {[]gpu.PodAllocation{given("p", 1, 8, 60)}, []placement.Holding{eighth, other}, []on{{4, 10, 1}, {8, 60, 1}, {8, 30, 1}}, 36, 4},
		"less than is written":          {[]gpu.PodAllocation{given("o", 0, 3, 5)}, []placement.Holding{eighth, other}, []on{{4, 10, 1}, {8, 30, 1}, {8, 30, 1}}, 29, 4},
		"of a pod that is gone":         {[]gpu.PodAllocation{given("x", 0, 16, 60)}, []placement.Holding{eighth, other}, []on{{4, 10, 1}, {8, 30, 1}, {8, 30, 1}}, 28, 4},
		"of one on no known GPU":        {[]gpu.PodAllocation{given("p", 0, 16, 60)}, []placement.Holding{hold("p", ask(16)), other}, []on{{4, 10, 1}, {0, 0, 0}, {0, 0, 0}}, 28, 4},
	} {
		t.Run(name, func(t *testing.T) {
			said := inv
			said.Allocated = tc.given
			n := node(said, tc.holdings...)
			var got []on
			for _, d := range n.Devices {
				got = append(got, on{d.Requested, d.RequestedCores, len(d.Pods)})
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("on the GPUs (-want +got):\n%s", diff)
			}
			if units, _ := n.Unrequested(); units != tc.sum {
				t.Errorf("%d are free in sum, want %d", units, tc.sum)
			}
			if got := n.Without(tc.holdings[:1]).Devices[0]; got.Requested != tc.without || got.RequestedCores != 10 {
				t.Errorf("without the pod %d units and %d%% of GPU 0 are requested, want %d and 10%%", got.Requested, got.RequestedCores, tc.without)
			}
			again := placement.NewNode("n", inv, n.Holdings()) // the holdings include the kubelet's allocation
			if diff := cmp.Diff(n.Devices, again.Devices); diff != "" {
				t.Errorf("made again (-want +got):\n%s", diff)
			}
		})
	}
}

// A pod that is moved to another node has no kubelet allocation there.
func TestWhatWasGivenDoesNotMove(t *testing.T) {
	said := inventory(device(0, 16))
	said.Allocated = []gpu.PodAllocation{given("p", 0, 16, 0)}
	p := node(said, hold("p", ask(2), 0)).Holdings()[0]
	to := node(inventory(device(0, 16))).With(p)
	if got := to.Devices[0].Requested; got != 2 {
		t.Errorf("%d units are requested, want 2", got)
	}
	if got := to.Without([]placement.Holding{p}).Devices[0].Requested; got != 0 {
		t.Errorf("%d units are requested once it has left, want none", got)
	}
}
