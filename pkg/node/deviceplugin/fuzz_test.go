package deviceplugin

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
	"github.com/gpumem/gpumem/pkg/node/render"
)

// FuzzRPCs sends requests that no kubelet sends. Each request gets a well-formed answer or an error, a grant
// names exactly the GPUs of its IDs, and the Reconciler writes no pod to more GPUs than the pod requests.
func FuzzRPCs(f *testing.F) {
	f.Add("aaaaaaaa-0,aaaaaaaa-1,bbbbbbbb-0", "", "aaaaaaaa-0,aaaaaaaa-1", int32(2), uint8(0))
	f.Add("aaaaaaaa-0,bbbbbbbb-0", "bbbbbbbb-0", "aaaaaaaa-0,bbbbbbbb-0", int32(2), uint8(1))
	f.Add("", "", "", int32(-1), uint8(2))
	f.Add("GPU-aaaaaaaa-_-0", "x", "aaaaaaaa-00", int32(1), uint8(7))
	f.Add("aaaaaaaa-c0,bbbbbbbb-c0", "", "aaaaaaaa-c0", int32(1), uint8(32+64))
	f.Fuzz(func(t *testing.T, available, must, ids string, size int32, setting uint8) {
		split := func(list string) []string {
			return slices.DeleteFunc(strings.Split(list, ","), func(s string) bool { return s == "" })
		}
		cfg := DefaultConfig("n1")
		cfg.PodWait, cfg.KubeletWait = time.Nanosecond, time.Second
		cfg.PlaceUnassigned = setting&1 == 0
		cfg.Containers.Strategy = []render.Strategy{render.Envvar, render.VolumeMounts, render.CDIAnnotations, render.CDICRI}[setting>>2%4]
		list := plugintest.NewPods(pod("a", 1, uuidA, app(2)), pod("b", 2, "", container("i", placement.Init, 1), app(1)))
		kubelet := plugintest.NewKubelet("ns/a", "ns/b")
		if setting&64 != 0 {
			kubelet.Give("a", "main", split(must))
		}
		p := New(cfg, plugintest.NewSource(plugintest.TwoGPUs()), list, kubelet, &plugintest.Notes{}, &plugintest.Counts{}, zap.NewNop())
		ctx := t.Context()
		server, ofCores := pluginapi.DevicePluginServer(p.Server), setting&32 != 0
		if ofCores {
			server = p.Server.Cores()
		}
		if preferred, err := server.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{nil, {
				AvailableDeviceIDs: split(available), MustIncludeDeviceIDs: split(must), AllocationSize: size,
			}},
		}); err == nil {
			t.Errorf("a request for nothing is answered: %v", preferred)
		}
		grants, err := server.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: split(ids)}}})
		if err == nil && !ofCores {
			checkGrant(t, grants, split(ids), cfg.Containers.Strategy)
		}
		_, _ = p.Server.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: split(ids)})
		_ = p.Reconciler.Pass(ctx)
		pods, _, _ := list.Pods()
		for _, pod := range pods {
			if n := len(pod.Assignment.Shares); n > 1 {
				t.Errorf("%s is written to be on %d GPUs, and asks for one", pod.Pod, n)
			}
		}
	})
}

func checkGrant(t *testing.T, grants *pluginapi.AllocateResponse, ids []string, strategy render.Strategy) {
	t.Helper()
	if len(grants.GetContainerResponses()) != 1 {
		t.Fatalf("%d answers for one container", len(grants.GetContainerResponses()))
	}
	want := make(map[gpu.UUID]bool)
	for _, id := range ids {
		want[map[bool]gpu.UUID{true: uuidA, false: uuidB}[strings.HasPrefix(id, "aaaaaaaa-")]] = true
	}
	env := grants.GetContainerResponses()[0].GetEnvs()
	told := strings.Split(env["GPUMEM_GPU_UUID"], ",")
	for _, uuid := range told {
		if !want[gpu.UUID(uuid)] {
			t.Errorf("%v are granted as %q", ids, told)
		}
	}
	if len(told) != len(want) || strategy == render.Envvar && env["NVIDIA_VISIBLE_DEVICES"] != env["GPUMEM_GPU_UUID"] {
		t.Errorf("%v are granted as %q, and seen as %q", ids, told, env["NVIDIA_VISIBLE_DEVICES"])
	}
}
