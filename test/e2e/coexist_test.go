package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/test/cluster"
)

// nvidiaPlugin offers whole GPUs by their UUIDs, as NVIDIA's device plugin does,
// and does not ask who else has them.
type nvidiaPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	uuids []string
}

func (nvidiaPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p nvidiaPlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	return cluster.ListDevices(p.uuids, stream)
}

func (nvidiaPlugin) Allocate(_ context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(c.GetDevicesIds(), ",")},
		})
	}
	return out, nil
}

// With NVIDIA's device plugin on the same node: a GPU that it has given to a pod
// is not offered until that pod has ended. Where both have given one away, the
// node says so.
func TestBesideNVIDIAsDevicePlugin(t *testing.T) {
	e := setup(t)
	first, second := e.gpu("node1", 0), e.gpu("node1", 1)
	stop, err := e.cluster.ServeDevicePlugin(e.ctx, "node1", "nvidia.com/gpu", nvidiaPlugin{uuids: []string{second}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	whole := func(name string) {
		t.Helper()
		e.create(e.pod(name, 0, onNode("node1"), asking("nvidia.com/gpu", 1), func(pod *v1.Pod) { pod.Spec.SchedulerName = v1.DefaultSchedulerName }))
		e.running(name)
	}
	health := func() string {
		for _, n := range e.inspect().Nodes {
			for _, g := range n.GPUs {
				if g.UUID == second {
					return g.Unhealthy
				}
			}
		}
		return "it is not there"
	}

	whole("whole")
	e.eventually("its GPU is not offered", func() (bool, string) {
		now := health()
		return now == "in use as nvidia.com/gpu by pod "+e.namespace+"/whole", now
	})
	e.create(e.pod("beside", 3, onNode("node1"), annotated("policy", "spread")))
	e.running("beside")
	if got := e.agree("beside", "main"); got[0] != first {
		t.Errorf("a pod of gpumem is on %v, want the other GPU, %s", got, first)
	}
	e.delete("whole", 0)
	e.eventually("it is offered again", func() (bool, string) {
		now := health()
		return now == "", now
	})

	e.create(e.pod("there", 3, onNode("node1"), annotated("gpu-uuid", second)))
	e.running("there")
	e.agree("there", "main")
	whole("too")
	e.eventually("the node says that both have it", func() (bool, string) {
		want := fmt.Sprintf("GPUMemoryConflict: GPU 1 (%s) is in use twice: as nvidia.com/gpu by pod %s/too, and as gpumem.dev/gpu-mem by %s/there.", second, e.namespace, e.namespace)
		events := e.nodeEvents("node1")
		return strings.Contains(events, want), events
	})
	e.delete("too", 0)
	e.eventually("it is offered again", func() (bool, string) {
		now := health()
		return now == "", now
	})
}

// The doctor finds nothing in a cluster that is well but that the test's
// installation has one replica, and finds what is then taken away.
func TestDoctorOnACluster(t *testing.T) {
	e := setup(t)
	kubectl := func(args ...string) {
		t.Helper()
		if _, err := suite.stack.Kubectl(e.ctx, e.cluster, args...); err != nil {
			t.Fatal(err)
		}
	}
	const alone = "warning deployment gpumem-system/gpumem-scheduler: has one replica"
	var said string
	e.eventually("nothing but the one replica is wrong", func() (bool, string) {
		var err error
		said, err = suite.stack.Inspect(e.ctx, e.cluster, "doctor")
		findings, _, _ := strings.Cut(said, "note ") // of pods that other tests make
		return err == nil && strings.HasPrefix(said, alone) && strings.Count(findings, "\n") == 2, fmt.Sprint(err, "\n", said)
	})
	binding, err := suite.stack.Kubectl(e.ctx, e.cluster, "get", "validatingadmissionpolicybinding", "gpumem-device-plugin", "-o", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	kubectl("delete", "validatingadmissionpolicybinding", "gpumem-device-plugin")
	said, err = suite.stack.Inspect(e.ctx, e.cluster, "doctor")
	if err != nil || !strings.Contains(said, "validatingadmissionpolicy gpumem-device-plugin: no binding has the action Deny") {
		t.Errorf("without the binding of a policy: %v\n%s", err, said)
	}
	e.applyText(binding)
	if _, err := suite.stack.Inspect(e.ctx, e.cluster, "doctor", "--resource-domain=absent.example.com"); err == nil || !strings.Contains(err.Error(), "findings are errors") {
		t.Errorf("in a domain that nothing is installed for: %v", err)
	}
}
