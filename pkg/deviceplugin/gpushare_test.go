package deviceplugin

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/allocation"
	"github.com/gpumem/gpumem/pkg/gpu"
)

// A pod that gpushare placed runs on GPU 1 by IDs that name GPU 0.
func TestAPodOfGPUShareIsTakenOver(t *testing.T) {
	old := pod("old", 1, "", app(3))
	old.Indexes, old.Settled = []int{1}, true
	n := newNode(t, nil, []string{"ns/old"}, old)
	ids := []string{string(uuidA) + "-_-0", string(uuidA) + "-_-5", string(uuidA) + "-_-7"}
	n.kubelet.give("old", "main", ids)
	for range 2 {
		if err := n.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"ns/old [" + string(uuidB) + "]"}, n.pods.corrected()); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"ns/old GPUMemoryTakenOver"}, n.notes.all()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if err := n.start(t.Context(), ids...); err != nil {
		t.Errorf("its container starts again: %v", err)
	}
	next := pod("next", 2, "", app(6))
	n.pods.add(next)
	if gpus, err := n.admit(t, next); err != nil || gpus[0] != "main=0" {
		t.Errorf("the next pod is on %v, %v; want GPU 0, which has room", gpus, err)
	}
}

// Somebody changed them, or the driver did; a GPU that is gone has none.
func TestIndexesAreWrittenAgain(t *testing.T) {
	wrong, missing, waiting, gone := pod("wrong", 1, uuidA, app(1)), pod("missing", 2, uuidB, app(2)), pod("waiting", 3, uuidA, app(3)), pod("gone", 4, "GPU-gone", app(4))
	wrong.Index, missing.Index, waiting.Index = "1", "", "1"
	wrong.Settled, missing.Settled, gone.Settled = true, true, true
	n := newNode(t, nil, nil, wrong, missing, waiting, gone)
	for range 2 {
		if err := n.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"ns/wrong [" + string(uuidA) + "]", "ns/missing [" + string(uuidB) + "]"}
	if diff := cmp.Diff(want, n.pods.corrected()); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	n.cfg.GPUShare = true
	n.pods.change("wrong", func(p *allocation.Pod) { p.Index = "1" })
	if err := n.reconcile(t.Context()); err != nil || len(n.pods.corrected()) != len(want) {
		t.Errorf("in gpushare's place: error %v, written %v", err, n.pods.corrected())
	}
}

func TestPodsAreMarkedOnceTheyAreAdmitted(t *testing.T) {
	admitted, waiting, unplaced := pod("admitted", 1, uuidA, app(3)), pod("waiting", 2, uuidA, app(3)), pod("unplaced", 3, "", app(3))
	for _, p := range []*bool{&admitted.Unmarked, &waiting.Unmarked, &unplaced.Unmarked, &admitted.Settled, &unplaced.Settled} {
		*p = true
	}
	n := newNode(t, nil, nil, admitted, waiting, unplaced)
	n.cfg.GPUShare = true
	if err := n.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ns/admitted [" + string(uuidA) + "]"}, n.pods.corrected()); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	if notes := n.notes.all(); len(notes) > 0 {
		t.Errorf("events %v, want none", notes)
	}
}

func TestCount(t *testing.T) {
	prober := newProber(twoGPUs())
	client := connect(t, NewCount(func() (gpu.Inventory, <-chan struct{}) {
		inv, _, changed := prober.Inventory()
		return inv, changed
	}))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	want := func(want int) {
		t.Helper()
		if list, err := stream.Recv(); err != nil || len(list.GetDevices()) != want {
			t.Errorf("GPUs %v, %v; want %d", list.GetDevices(), err, want)
		}
	}
	want(2)
	prober.set(func(inv *gpu.Inventory) { inv.Devices[0].Status.Unhealthy = true }) // it still counts
	prober.set(func(inv *gpu.Inventory) { inv.Devices = inv.Devices[:1] })
	want(1)
	_, err = client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{})
	wantStatus(t, err, codes.FailedPrecondition, "only counts the GPUs")
	_, err = client.Allocate(ctx, &pluginapi.AllocateRequest{})
	wantStatus(t, err, codes.FailedPrecondition, "only counts the GPUs")
	if options, err := client.GetDevicePluginOptions(ctx, &pluginapi.Empty{}); err != nil || !options.GetGetPreferredAllocationAvailable() {
		t.Errorf("options %v, %v", options, err)
	}
}
