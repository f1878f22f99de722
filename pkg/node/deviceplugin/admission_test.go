package deviceplugin

import (
	"errors"
	"slices"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

// TestWhichPodTheKubeletAsksFor covers pods of init containers alone: the kubelet lists their names and never their
// slots, so that only pods that are not admitted yet can wait for slots.
func TestWhichPodTheKubeletAsksFor(t *testing.T) {
	inv := plugintest.TwoGPUs()
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		t.Fatal(err)
	}
	warm := plugintest.Pod("warm", 1, plugintest.GPUB, plugintest.Container("warm", placement.Init, 3))
	main := plugintest.Pod("main", 1, plugintest.GPUB, plugintest.App(3))
	admitted := func(p allocation.Pod) allocation.Pod {
		p.Admitted = true
		return p
	}
	for name, tc := range map[string]struct {
		pod    allocation.Pod
		listed bool
		waits  bool
	}{
		"a pod":                                 {main, true, true},
		"a pod that is not listed":              {main, false, false},
		"init containers alone":                 {warm, true, true},
		"init containers alone, and not listed": {warm, false, false},
		"init containers that have begun":       {admitted(warm), true, false},
	} {
		other := plugintest.Pod("other", 2, plugintest.GPUA, plugintest.App(5)) // asks for another amount
		s := allocation.State{Inventory: inv, Slots: slots, Pods: []allocation.Pod{tc.pod, other}, Listed: map[string]bool{tc.pod.Pod.String(): tc.listed, other.Pod.String(): true}}
		ids, err := preferListed(s, gpu.Memory, slices.Concat(slots.Of(gpu.Memory, plugintest.GPUA), slots.Of(gpu.Memory, plugintest.GPUB)), nil, 3)
		switch {
		case !tc.waits && !errors.Is(err, allocation.ErrNoPod):
			t.Errorf("%s: %v, %v; want that none waits", name, ids, err)
		case tc.waits && (err != nil || len(ids) != 3 || !plugintest.On(string(ids[0]), plugintest.GPUB)):
			t.Errorf("%s: %v, %v; want three units of its GPU", name, ids, err)
		}
	}
}
