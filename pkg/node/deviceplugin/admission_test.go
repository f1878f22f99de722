package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

// TestWhichPodTheKubeletAsksFor covers pods in which only plain init containers request memory. The kubelet
// lists their names and never their slots, so such a pod can wait for slots only until its admission.
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

func TestStatusOfAnError(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code codes.Code
	}{
		{fmt.Errorf("look: %w", context.Canceled), codes.DeadlineExceeded},
		{fmt.Errorf("look: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{fmt.Errorf("admit: %w", allocation.ErrNoPod), codes.NotFound},
		{errors.New("no room"), codes.FailedPrecondition},
	} {
		wantStatus(t, asStatus(tc.err), tc.code, tc.err.Error())
	}
}

func slotsOf(ids []string) (out []gpu.SlotID) {
	for _, id := range ids {
		out = append(out, gpu.SlotID(id))
	}
	return out
}

// TestAKubeletThatDoesNotWait verifies that a canceled call takes no slots for an unknown pod, because the
// kubelet no longer waits for the answer.
func TestAKubeletThatDoesNotWait(t *testing.T) {
	n := newNode(t, func(c *Config) { c.PlaceUnassigned = true }, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if ids, err := n.Server.prefer(ctx, gpu.Memory, slotsOf(n.Free()), nil, 3); !errors.Is(err, context.Canceled) {
		t.Errorf("preferred %v, %v", ids, err)
	}
	if to, _, _, err := n.Server.admit(ctx, gpu.Memory, slotsOf(n.Free()[:3])); !errors.Is(err, context.Canceled) {
		t.Errorf("admitted %v, %v", to, err)
	}
	if ids, err := n.Server.prefer(t.Context(), gpu.Memory, slotsOf(n.Free()), nil, 3); len(ids) != 3 || err != nil {
		t.Errorf("a kubelet that waits is told %v, %v", ids, err)
	}
}

// TestAContainerOfGPUShareStarts verifies that the container starts although its slots are unknown to the plugin. Its
// environment comes from gpushare's plugin.
func TestAContainerOfGPUShareStarts(t *testing.T) {
	n := newNode(t, nil, nil)
	if err := n.Start(t.Context(), "GPU-11111111-2222-3333-4444-555555555555-_-0"); err != nil {
		t.Error(err)
	}
	if err := n.Start(t.Context(), "cccccccc-0"); err == nil {
		t.Error("a container of an unknown GPU starts")
	}
}

// TestAPodWithAWeakerLevelThanItDemands verifies that such a pod does not start.
func TestAPodWithAWeakerLevelThanItDemands(t *testing.T) {
	n := newNode(t, func(c *Config) { c.Ready = func(context.Context, gpu.Enforcement, []gpu.Device) error { return nil } }, nil)
	for _, tc := range []struct{ has, demands gpu.Enforcement }{
		{"mps", "kernel"}, {"", "mps"}, {"advisory", "mps"}, {"mps", "mps"}, {"kernel", "mps"}, {"", ""},
	} {
		p := pod("p", 1, uuidA, app(3))
		p.Request.Enforcement, p.Assignment.Enforcement = tc.demands, tc.has
		err := n.Server.mayStart(t.Context(), allocation.State{}, p, allocation.Allocated{}, allocation.Grant{})
		if (err == nil) != tc.has.AtLeast(tc.demands) {
			t.Errorf("it has %q and demands %q: %v", tc.has, tc.demands, err)
		}
	}
}

// broken is a stream to a kubelet that is gone.
type broken struct {
	grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]
}

func (broken) Send(*pluginapi.ListAndWatchResponse) error { return errors.New("the kubelet is gone") }

func TestAListThatCannotBeSent(t *testing.T) {
	n := newNode(t, nil, nil)
	if err := n.Server.ListAndWatch(nil, broken{}); err == nil || err.Error() != "send the devices: the kubelet is gone" {
		t.Errorf("error %v", err)
	}
}
