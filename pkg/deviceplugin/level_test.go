package deviceplugin

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/allocation"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

func TestWhatEnforcesAGrant(t *testing.T) {
	devices := []gpu.Device{{UUID: "GPU-a", MemoryMiB: 15360}, {UUID: "GPU-b", Index: 3, MemoryMiB: 15360}}
	mounts := []*pluginapi.Mount{
		{ContainerPath: "/run/gpumem/mps/pipe", HostPath: "/run/gpumem/mps/pipe", ReadOnly: true},
		{ContainerPath: "/dev/shm", HostPath: "/run/gpumem/mps/shm"},
	}
	for _, tc := range []struct {
		level  gpu.Enforcement
		env    map[string]string
		mounts []*pluginapi.Mount
		cores  map[string]string
	}{
		{"", map[string]string{"GPUMEM_ENFORCEMENT": "advisory"}, nil, map[string]string{"GPUMEM_CORE_PERCENT": "30"}},
		{gpu.EnforcementAdvisory, map[string]string{"GPUMEM_ENFORCEMENT": "advisory"}, nil, map[string]string{"GPUMEM_CORE_PERCENT": "30"}},
		{gpu.EnforcementMPS, map[string]string{
			"GPUMEM_ENFORCEMENT": "mps", "CUDA_MPS_PIPE_DIRECTORY": "/run/gpumem/mps/pipe", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M,1=3072M",
		}, mounts, map[string]string{"GPUMEM_CORE_PERCENT": "30", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}},
		{gpu.EnforcementKernel, map[string]string{
			"GPUMEM_ENFORCEMENT": "kernel", "CUDA_MPS_PIPE_DIRECTORY": "/run/gpumem/mps/pipe", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M,1=3072M",
			"NVIDIA_GPU_MEMORY_REQUEST": "3072", "NVIDIA_GPU_MEMORY_LIMIT": "3072",
		}, mounts, map[string]string{"GPUMEM_CORE_PERCENT": "30", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}},
	} {
		t.Run(string(tc.level), func(t *testing.T) {
			inv := gpu.Inventory{UnitMiB: 1024, Enforcement: tc.level}
			got := response(allocation.Grant{Devices: devices, Each: 3}, inv, DefaultConfig("n"))
			env := got.GetEnvs()
			for name := range env {
				if !strings.HasPrefix(name, "CUDA_") && !strings.HasPrefix(name, "NVIDIA_GPU_") && name != "GPUMEM_ENFORCEMENT" {
					delete(env, name)
				}
			}
			if diff := cmp.Diff(tc.env, env); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.mounts, got.GetMounts(), protocmp.Transform()); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
			cores := coreResponse(allocation.Grant{Devices: devices, Each: 30}, inv).GetEnvs()
			if diff := cmp.Diff(tc.cores, cores); diff != "" {
				t.Errorf("environment of cores (-want +got):\n%s", diff)
			}
		})
	}
}

// demanding is a pod that accepts no level below that.
func demanding(p allocation.Pod, level gpu.Enforcement) allocation.Pod {
	p.Request.Enforcement = level
	return p
}

func (n *node) levelIs(level gpu.Enforcement) {
	n.prober.set(func(inv *gpu.Inventory) { inv.Enforcement = level })
}

func (n *node) assignedLevel(name string) gpu.Enforcement {
	pods, _, _ := n.pods.Pods()
	i := slices.IndexFunc(pods, func(p allocation.Pod) bool { return p.Pod.Name == name })
	return pods[i].Assignment.Enforcement
}

func TestNoInitContainerStartsWithoutItsLimit(t *testing.T) {
	prepare := container("prepare", placement.Init, 2)
	for name, tc := range map[string]struct {
		pod  allocation.Pod
		want string
	}{
		"before another":              {pod("a", 1, uuidA, prepare, app(3)), "the init container waits: the MPS daemon is dead"},
		"the only one that holds any": {pod("a", 1, uuidA, prepare), "container prepare of pod ns/a waits: the MPS daemon is dead"},
	} {
		t.Run(name, func(t *testing.T) {
			var ready error
			n := newNode(t, func(c *Config) {
				c.Ready = func(_ context.Context, level gpu.Enforcement) error {
					if level != gpu.EnforcementMPS {
						t.Errorf("asked for %q", level)
					}
					return ready
				}
			}, nil, tc.pod)
			n.levelIs(gpu.EnforcementMPS)
			if _, err := n.admit(t, tc.pod); err != nil {
				t.Fatal(err)
			}
			ready = errors.New("the MPS daemon is dead")
			ids := plain(slices.Sorted(maps.Keys(n.levels)))[:prepare.Units]
			wantStatus(t, n.start(t.Context(), ids...), codes.FailedPrecondition, tc.want)
		})
	}
}

func TestTheLevelThatAPodHasIsWritten(t *testing.T) {
	bound := pod("a", 1, uuidA, app(3))
	bound.Assignment.Enforcement = gpu.EnforcementMPS // when it was bound, and the daemon has died since
	n := newNode(t, nil, nil, bound)
	if _, err := n.admit(t, bound); err != nil {
		t.Fatal(err)
	}
	if err := n.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := n.assignedLevel("a"); got != gpu.EnforcementAdvisory {
		t.Errorf("the pod is written to have %q, and was given advisory", got)
	}
	if want := "ns/a GPUMemoryEnforcement"; !slices.Contains(n.notes.all(), want) {
		t.Errorf("events %v, want %s", n.notes.all(), want)
	}

	n.levelIs(gpu.EnforcementMPS) // of the node; what the pod was given stays
	if err := n.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := n.assignedLevel("a"); got != gpu.EnforcementAdvisory {
		t.Errorf("the pod is written to have %q once its node has mps", got)
	}
}

// Where a pod is written to be elsewhere and at another level than it is, both are put right
// without writing where it is not.
func TestALevelMovesNoPodBack(t *testing.T) {
	a, b := pod("a", 1, uuidA, app(6)), pod("b", 2, uuidB, app(6))
	n := newNode(t, nil, nil, a, b)
	n.levelIs(gpu.EnforcementMPS)
	n.swap(t, "b", 6)
	n.pods.settle("b")
	for range 3 {
		if err := n.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	onA, onB := "["+string(uuidA)+"]", "["+string(uuidB)+"]"
	want := []string{"ns/a " + onB + " leaving " + onA, "ns/b " + onA + " leaving " + onB, "ns/a " + onB, "ns/b " + onA}
	if diff := cmp.Diff(want, n.pods.corrected()); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	if got := n.assignedLevel("b"); got != gpu.EnforcementMPS {
		t.Errorf("level %q is written, want mps", got)
	}
}

// The index of a pod was changed, and its node has had another level since it was bound: both are
// put right by one write.
func TestAllThatIsWrongOfAPodIsWrittenAtOnce(t *testing.T) {
	bound := pod("a", 1, uuidA, app(3))
	bound.Assignment.Enforcement, bound.Index = gpu.EnforcementMPS, "1"
	n := newNode(t, nil, nil, bound)
	if _, err := n.admit(t, bound); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"ns/a [" + string(uuidA) + "]"}, n.pods.corrected()); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	if got := n.assignedLevel("a"); got != gpu.EnforcementAdvisory {
		t.Errorf("level %q is written, want advisory", got)
	}
}

func TestAPodThatDemandsALevel(t *testing.T) {
	p := demanding(pod("a", 1, uuidA, app(3)), gpu.EnforcementMPS)
	n := newNode(t, nil, nil, p)
	_, err := n.admit(t, p)
	wantStatus(t, err, codes.FailedPrecondition, "pod ns/a wants enforcement mps; this node has advisory")

	n.levelIs(gpu.EnforcementKernel)
	if _, err := n.admit(t, p); err != nil {
		t.Errorf("a stronger level does not do: %v", err)
	}
}

func TestNoContainerStartsWithoutItsLimit(t *testing.T) {
	dead := errors.New("the MPS daemon is dead")
	var ready error
	var asked []gpu.Enforcement
	p := pod("a", 1, uuidA, app(3))
	n := newNode(t, func(c *Config) {
		c.Ready = func(_ context.Context, level gpu.Enforcement) error {
			asked = append(asked, level)
			return ready
		}
	}, nil, p)
	n.levelIs(gpu.EnforcementMPS)
	if _, err := n.admit(t, p); err != nil {
		t.Fatal(err)
	}
	ids := plain(n.kubelet.held[0].Slots)
	ready = dead
	wantStatus(t, n.start(t.Context(), ids...), codes.FailedPrecondition, "container main of pod ns/a waits: the MPS daemon is dead")
	if want := "ns/a GPUMemoryNotEnforced"; !slices.Contains(n.notes.all(), want) {
		t.Errorf("events %v, want %s", n.notes.all(), want)
	}
	ready = nil
	if err := n.start(t.Context(), ids...); err != nil {
		t.Errorf("it is back, and the container does not start: %v", err)
	}

	// A plugin that has just started knows from the annotation.
	if err := n.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.levels = make(levels)
	ready = dead
	wantStatus(t, n.start(t.Context(), ids...), codes.FailedPrecondition, "the MPS daemon is dead")
	if diff := cmp.Diff(slices.Repeat([]gpu.Enforcement{gpu.EnforcementMPS}, 4), asked); diff != "" {
		t.Errorf("levels asked for (-want +got):\n%s", diff)
	}
}
