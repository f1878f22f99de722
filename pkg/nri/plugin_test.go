package nri

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
)

// containers are one container, known or not.
type containers struct {
	env   map[string]string
	fail  error
	asked []string
}

func (c *containers) Environment(_ context.Context, namespace, pod, container string) (map[string]string, bool, error) {
	c.asked = append(c.asked, "environment of "+namespace+"/"+pod+"/"+container)
	return c.env, c.env != nil, c.fail
}

func (c *containers) Hold(_ context.Context, namespace, pod, container, cgroupsPath string) error {
	c.asked = append(c.asked, "limit of "+namespace+"/"+pod+"/"+container+" in "+cgroupsPath)
	return c.fail
}

var sandbox = &api.PodSandbox{Namespace: "ns", Name: "p"}

func container(env ...string) *api.Container {
	return &api.Container{Name: "main", Env: env, Linux: &api.LinuxContainer{CgroupsPath: "/kubepods/podp/c1"}}
}

func TestTheEnvironmentIsThatOfTheGrant(t *testing.T) {
	known := &containers{env: map[string]string{
		"NVIDIA_VISIBLE_DEVICES": "GPU-a", "GPUMEM_GPU_UUID": "GPU-a", "GPUMEM_LIMIT_MIB": "3072", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M",
		"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2000",
	}}
	p := New("", known, zap.NewNop())
	adjustment, _, err := p.CreateContainer(t.Context(), sandbox, container(
		"PATH=/bin", "GPUMEM_GPU_UUID=GPU-a", "NVIDIA_VISIBLE_DEVICES=all", "GPUMEM_LIMIT_MIB=81920", "CUDA_MPS_PIPE_DIRECTORY=/nowhere", "NVIDIA_GPU_MEMORY_LIMIT=81920",
		"XLA_PYTHON_CLIENT_MEM_FRACTION=0.9"))
	if err != nil {
		t.Fatal(err)
	}
	set, removed := make(map[string]string), make(map[string]bool)
	for _, e := range adjustment.GetEnv() {
		if name, marked := e.IsMarkedForRemoval(); marked {
			removed[name] = true
		} else {
			set[e.GetKey()] = e.GetValue()
		}
	}
	if diff := cmp.Diff(map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-a", "GPUMEM_LIMIT_MIB": "3072", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M"}, set); diff != "" {
		t.Errorf("set (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"CUDA_MPS_PIPE_DIRECTORY": true, "NVIDIA_GPU_MEMORY_LIMIT": true}, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
}

func TestWhoIsAskedAbout(t *testing.T) {
	for name, tc := range map[string]struct {
		container *api.Container
		known     *containers
		asked     []string
		wantErr   bool
	}{
		"a container without a grant":             {container("NVIDIA_VISIBLE_DEVICES=all"), &containers{fail: errors.New("broken")}, nil, false},
		"one of which the kubelet does not tell":  {container("GPUMEM_GPU_UUID=GPU-a"), &containers{}, []string{"environment of ns/p/main", "limit of ns/p/main in /kubepods/podp/c1"}, false},
		"one whose limit does not hold, or worse": {container("GPUMEM_GPU_UUID=GPU-a"), &containers{fail: errors.New("broken")}, []string{"environment of ns/p/main", "limit of ns/p/main in /kubepods/podp/c1"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := New("", tc.known, zap.NewNop())
			adjustment, _, err := p.CreateContainer(t.Context(), sandbox, tc.container)
			if (err != nil) != tc.wantErr || adjustment != nil {
				t.Errorf("create: %v, %v", adjustment, err)
			}
			if err := p.StartContainer(t.Context(), sandbox, tc.container); (err != nil) != tc.wantErr {
				t.Errorf("start: %v", err)
			}
			if diff := cmp.Diff(tc.asked, tc.known.asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoRuntime(t *testing.T) {
	p := New(t.TempDir()+"/nri.sock", &containers{}, zap.NewNop())
	if p.Connected() == nil {
		t.Error("connected before it runs")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if p.Connected() == nil {
		t.Error("connected to nobody")
	}
}
