package allocation

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// inheritPod adds a pod that gpushare has put on a GPU and that runs. The
// kubelet had taken its IDs at random, here those of another GPU.
func (c *cluster) inheritPod(p Pod, index, idsOf int) {
	p.Indexes, p.Admitted = []int{index}, true
	given := &admitted{pod: p.Pod, slots: make(map[string][]gpu.SlotID)}
	for _, container := range p.Request.Containers.All() {
		for n := range container.Units {
			id := gpu.SlotID(fmt.Sprintf("%s-_-%s%d", uuid(idsOf), p.Pod.Name, n))
			given.slots[container.Name] = append(given.slots[container.Name], id)
		}
		given.names = append(given.names, container.Name)
	}
	c.kubelet.pods = append(c.kubelet.pods, given)
	c.pods = append(c.pods, p)
}

// inherited is a node with two GPUs of 14, of which gpushare has given away 12
// and 4.
func inherited(t *testing.T) *cluster {
	c := newCluster(t, 1, inventory(14, 14))
	c.inheritPod(pod("old-a", ask(app("a", 6))), 0, 1)
	c.inheritPod(pod("old-b", ask(app("a", 6))), 0, 0)
	c.inheritPod(pod("old-c", ask(app("a", 4))), 1, 0)
	return c
}

func TestPodsOfGPUShareStayWhereItWroteThem(t *testing.T) {
	c := inherited(t)
	c.correct()
	c.want("old-a", []gpu.Units{6, 0}, 0)
	c.want("old-b", []gpu.Units{6, 0}, 0)
	c.want("old-c", []gpu.Units{0, 4}, 1)
	if again := Reconcile(c.state()); len(again) > 0 {
		t.Errorf("there is still to be written: %v", again)
	}
	t.Run("although somebody has written of GPUs that are not there", func(t *testing.T) {
		c := inherited(t)
		c.pods[2].Assignment = placement.Assignment{Shares: []placement.Share{{Device: "GPU-none", Units: 4}}}
		c.correct()
		c.want("old-c", []gpu.Units{0, 4}, 1)
	})
	t.Run("although the kubelet takes another for them", func(t *testing.T) {
		// All three are alike, and one of the new pods has what was meant for the
		// other. Only the one that waits may be moved.
		c := inherited(t)
		alike := ask(app("a", 4))
		swapped := pod("swapped", alike, 0)
		swapped.Admitted = true
		c.pods = append([]Pod{pod("waits", alike, 1), swapped}, c.pods...)
		c.kubelet.pods = append(c.kubelet.pods, &admitted{
			pod: swapped.Pod, slots: map[string][]gpu.SlotID{"a": ids(1, 0, 1, 2, 3)}, names: []string{"a"},
		})
		c.correct()
		c.want("old-c", []gpu.Units{0, 4}, 1)
		if diff := cmp.Diff([]int{0}, c.written("waits")); diff != "" {
			t.Errorf("the pod that waits (-want +got):\n%s", diff)
		}
	})
}

func TestMemoryOfPodsOfGPUShareIsNotGivenAway(t *testing.T) {
	refused := func(t *testing.T, c *cluster, name, want string) {
		t.Helper()
		if err := c.admit(name); err == nil || !strings.Contains(reasons.Error(err), want) {
			t.Errorf("admission of %s: %v, want %q", name, err, want)
		}
	}
	for _, corrected := range []bool{true, false} {
		t.Run(fmt.Sprint("written down: ", corrected), func(t *testing.T) {
			c := inherited(t)
			if corrected {
				c.correct()
			}
			c.pods = append(c.pods,
				pod("stray", ask(app("a", 3))), pod("large", ask(app("a", 11))),
				pod("forged", ask(app("a", 3)), 0), pod("rest", ask(app("a", 2)), 0))
			refused(t, c, "large", "needs 11 GiB on one GPU; free: GPU0 0, GPU1 10") // 2 and 3 are planned for others on GPU 0
			c.mustAdmit("stray", "forged", "rest")
			for name, want := range map[string][]gpu.Units{"stray": {0, 3}, "forged": {0, 3}, "rest": {2, 0}} {
				if diff := cmp.Diff(want, c.on(name)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
		})
	}
	t.Run("when nobody knows where it is", func(t *testing.T) {
		c := newCluster(t, 1, inventory(14, 14))
		c.inheritPod(pod("lost", ask(app("a", 6))), 7, 0)
		c.pods = append(c.pods, pod("stray", ask(app("a", 9))), pod("small", ask(app("a", 8))))
		refused(t, c, "stray", "free: GPU0 8, GPU1 8 (16 in all, fragmented); pods whose GPU is not known yet, counted on each: 1")
		c.mustAdmit("small")
	})
	t.Run("when the API server has forgotten the pod", func(t *testing.T) {
		c := newCluster(t, 1, inventory(14, 14))
		c.inheritPod(pod("gone", ask(app("a", 6))), 0, 0)
		c.pods = []Pod{pod("stray", ask(app("a", 9)))}
		refused(t, c, "stray", "needs 9 GiB on one GPU")
	})
	t.Run("until the pod has ended", func(t *testing.T) {
		c := inherited(t)
		c.kubelet.remove(c.pods[0].Pod)
		c.pods = append(c.pods[1:], pod("next", ask(app("a", 8)), 0))
		c.mustAdmit("next")
		c.want("next", []gpu.Units{8, 0}, 0)
	})
}

func TestInitContainersBesidePodsOfGPUShare(t *testing.T) {
	c := inherited(t)
	c.pods = append(c.pods, pod("p", ask(initial("i", 1), app("a", 2)), 0))
	c.mustAdmit("p")
	c.want("p", []gpu.Units{2, 0}, 0)
}

// The slots that a pod's init container leaves it are its own, whichever they are.
func TestInitContainersKeepTheirSlotsBesidePodsOfGPUShare(t *testing.T) {
	c := newCluster(t, 1, inventory(8))
	c.inheritPod(pod("old", ask(app("a", 4))), 0, 0)
	c.pods = append(c.pods, pod("p", ask(initial("i", 2), app("a", 4)), 0))
	for _, must := range [][]gpu.SlotID{ids(0, 6, 7), ids(0, 0, 7), ids(0, 0, 1)} {
		got, err := Prefer(c.state(), gpu.Memory, ids(0, 0, 1, 2, 3, 4, 5, 6, 7), must, 4)
		if err != nil {
			t.Errorf("with %v: %v", must, err)
		}
		c.checkPreference(got, ids(0, 0, 1, 2, 3, 4, 5, 6, 7), must, 4)
	}
}

func TestAPodThatGPUSharePlacedAndTheKubeletDidNot(t *testing.T) {
	c := newCluster(t, 1, inventory(14, 14))
	c.place = false
	p := pod("bound", ask(app("a", 6)))
	p.Indexes = []int{1}
	c.pods = []Pod{p}
	c.mustAdmit("bound")
	c.correct()
	c.want("bound", []gpu.Units{0, 6}, 1)
}

func TestWhatGPUShareWroteOfSeveralGPUs(t *testing.T) {
	two := ask(app("a", 6))
	two.Count = 2
	for name, tc := range map[string]struct {
		request placement.Request
		indexes []int
		want    []gpu.UUID
	}{
		"one":                              {ask(app("a", 6)), []int{1}, []gpu.UUID{uuid(1)}},
		"two":                              {two, []int{0, 1}, []gpu.UUID{uuid(0), uuid(1)}},
		"more than the pod asks for":       {ask(app("a", 6)), []int{0, 1}, []gpu.UUID{}},
		"fewer than the pod asks for":      {two, []int{1}, []gpu.UUID{}},
		"one that the node does not have":  {ask(app("a", 6)), []int{9}, []gpu.UUID{}},
		"one of two that it does not have": {two, []int{0, 9}, []gpu.UUID{}},
		"none":                             {ask(app("a", 6)), nil, []gpu.UUID{}},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod("p", tc.request)
			p.Indexes = tc.indexes
			if diff := cmp.Diff(tc.want, newCluster(t, 1, inventory(14, 14)).state().byIndex(p).Devices()); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
		})
	}
}
