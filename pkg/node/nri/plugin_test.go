package nri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
)

// fakeContainers is one container, known or unknown.
type fakeContainers struct {
	env   map[string]string
	fail  error
	holds bool // some container of the pod has GPU memory
	asked []string
}

func (c *fakeContainers) HoldsMemory(_ context.Context, namespace, pod string) bool {
	c.asked = append(c.asked, "grants of "+namespace+"/"+pod)
	return c.holds
}

func (c *fakeContainers) Environment(_ context.Context, namespace, pod, container string, given map[string]string) (map[string]string, bool, error) {
	c.asked = append(c.asked, strings.TrimSpace("environment of "+namespace+"/"+pod+"/"+container+" "+given["GPUMEM_ENFORCEMENT"]))
	return c.env, c.env != nil, c.fail
}

func (c *fakeContainers) SetLimit(_ context.Context, namespace, pod, container, cgroupsPath string, given map[string]string) error {
	c.asked = append(c.asked, strings.TrimSpace("limit of "+namespace+"/"+pod+"/"+container+" in "+cgroupsPath+" "+given["GPUMEM_ENFORCEMENT"]))
	return c.fail
}

func (c *fakeContainers) Release(_ context.Context, cgroupsPath string, given map[string]string) error {
	c.asked = append(c.asked, "end of "+cgroupsPath+" "+given["GPUMEM_ENFORCEMENT"])
	return c.fail
}

var sandbox = &api.PodSandbox{Id: "s1", Namespace: "ns", Name: "p"}

func container(env ...string) *api.Container {
	return &api.Container{Name: "main", Env: env, Linux: &api.LinuxContainer{CgroupsPath: "/kubepods/podp/c1"}}
}

func TestTheEnvironmentIsThatOfTheGrant(t *testing.T) {
	grant := map[string]string{
		"NVIDIA_VISIBLE_DEVICES": "GPU-a", "GPUMEM_GPU_UUID": "GPU-a", "GPUMEM_LIMIT_MIB": "3072", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2000",
	}
	for name, tc := range map[string]struct {
		has     []string
		set     map[string]string
		wantErr string
	}{
		"as it was given":       {[]string{"PATH=/bin", "GPUMEM_GPU_UUID=GPU-a", "NVIDIA_VISIBLE_DEVICES=GPU-a", "GPUMEM_LIMIT_MIB=3072"}, map[string]string{}, ""},
		"a framework's own":     {[]string{"GPUMEM_GPU_UUID=GPU-a", "NVIDIA_VISIBLE_DEVICES=GPU-a", "GPUMEM_LIMIT_MIB=3072", "XLA_PYTHON_CLIENT_MEM_FRACTION=0.2000", "XLA_PYTHON_CLIENT_MEM_FRACTION=0.9"}, map[string]string{}, ""},
		"of an exchanged pod":   {[]string{"GPUMEM_GPU_UUID=GPU-b", "NVIDIA_VISIBLE_DEVICES=GPU-b"}, map[string]string{"GPUMEM_GPU_UUID": "GPU-a", "NVIDIA_VISIBLE_DEVICES": "GPU-a", "GPUMEM_LIMIT_MIB": "3072"}, ""},
		"twice the same":        {[]string{"GPUMEM_GPU_UUID=GPU-a", "NVIDIA_VISIBLE_DEVICES=GPU-a", "NVIDIA_VISIBLE_DEVICES=GPU-a", "GPUMEM_LIMIT_MIB=3072"}, map[string]string{}, ""},
		"the pod's beside ours": {[]string{"GPUMEM_GPU_UUID=GPU-a", "NVIDIA_VISIBLE_DEVICES=GPU-a", "NVIDIA_VISIBLE_DEVICES=all", "GPUMEM_LIMIT_MIB=3072"}, nil, "sets NVIDIA_VISIBLE_DEVICES, which gpumem sets"},
		"links to services": {[]string{"GPUMEM_GPU_UUID=GPU-a", "NVIDIA_VISIBLE_DEVICES=GPU-a", "GPUMEM_LIMIT_MIB=3072",
			"GPUMEM_PORTAL_SERVICE_HOST=10.0.0.1", "GPUMEM_PORTAL_SERVICE_PORT=80", "GPUMEM_PORTAL_SERVICE_PORT_HTTP=80", "GPUMEM_PORTAL_PORT=tcp://10.0.0.1:80",
			"GPUMEM_PORTAL_PORT_80_TCP=tcp://10.0.0.1:80", "GPUMEM_PORTAL_PORT_80_TCP_PROTO=tcp", "GPUMEM_PORTAL_PORT_80_TCP_PORT=80", "GPUMEM_PORTAL_PORT_80_TCP_ADDR=10.0.0.1",
			"CUDA_MPS_WEB_SERVICE_HOST=10.0.0.2"}, map[string]string{}, ""},
		"what was not given": {[]string{"GPUMEM_GPU_UUID=GPU-a", "CUDA_MPS_PIPE_DIRECTORY=/nowhere", "NVIDIA_GPU_MEMORY_LIMIT=9"}, nil, "sets CUDA_MPS_PIPE_DIRECTORY, NVIDIA_GPU_MEMORY_LIMIT, which"},
	} {
		t.Run(name, func(t *testing.T) {
			p := New("", &fakeContainers{env: grant}, zap.NewNop())
			adjustment, _, err := p.CreateContainer(t.Context(), sandbox, container(tc.has...))
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			set := make(map[string]string)
			for _, e := range adjustment.GetEnv() {
				set[e.GetKey()] = e.GetValue()
			}
			if diff := cmp.Diff(tc.set, set); diff != "" {
				t.Errorf("set (-want +got):\n%s", diff)
			}
		})
	}
}

// If the pod or the image sets a setting by its second name, that value takes precedence over gpumem's value.
func TestASettingWithTwoNames(t *testing.T) {
	const jax, torch = "XLA_PYTHON_CLIENT_MEM_FRACTION", "PYTORCH_ALLOC_CONF"
	grant := map[string]string{"GPUMEM_GPU_UUID": "GPU-a", jax: "0.2000", torch: "per_process_memory_fraction:0.2000"}
	for name, tc := range map[string]struct {
		has []string
		set map[string]string
	}{
		"no second name":                {nil, nil},
		"JAX":                           {[]string{"XLA_CLIENT_MEM_FRACTION=0.95"}, map[string]string{jax: ""}},
		"JAX, and it is set to nothing": {[]string{"XLA_CLIENT_MEM_FRACTION="}, nil},
		"PyTorch":                       {[]string{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}, map[string]string{torch: "expandable_segments:True,per_process_memory_fraction:0.2000"}},
		"PyTorch's fraction":            {[]string{"PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:0.5"}, map[string]string{torch: "per_process_memory_fraction:0.5"}},
		"both": {[]string{"XLA_CLIENT_MEM_FRACTION=0.95", "PYTORCH_CUDA_ALLOC_CONF=backend:native"},
			map[string]string{torch: "backend:native,per_process_memory_fraction:0.2000", jax: ""}},
	} {
		for _, byClaim := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " by claim ", byClaim), func(t *testing.T) {
				known := &fakeContainers{env: grant}
				if byClaim {
					known.env = nil
				}
				has := append([]string{"GPUMEM_GPU_UUID=GPU-a", jax + "=0.2000", torch + "=per_process_memory_fraction:0.2000"}, tc.has...)
				adjustment, _, err := New("", known, zap.NewNop()).CreateContainer(t.Context(), sandbox, container(has...))
				if err != nil {
					t.Fatal(err)
				}
				var set map[string]string
				for _, e := range adjustment.GetEnv() {
					if set == nil {
						set = make(map[string]string)
					}
					set[e.GetKey()] = e.GetValue()
				}
				if diff := cmp.Diff(tc.set, set); diff != "" {
					t.Errorf("adjusted (-want +got):\n%s", diff)
				}
			})
		}
	}
	own := container("GPUMEM_GPU_UUID=GPU-a", jax+"=0.7", "XLA_CLIENT_MEM_FRACTION=0.95")
	adjustment, _, err := New("", &fakeContainers{env: grant}, zap.NewNop()).CreateContainer(t.Context(), sandbox, own)
	if err != nil || len(adjustment.GetEnv()) > 0 {
		t.Errorf("of a container that sets both names itself: %v, %v", adjustment, err)
	}
}

// CreateContainer rejects a container without a grant if its environment claims a grant.
func TestNoContainerSaysOfItselfThatItWasGivenGPUs(t *testing.T) {
	p := New("", &fakeContainers{env: map[string]string{}}, zap.NewNop())
	adjustment, _, err := p.CreateContainer(t.Context(), sandbox, container("GPUMEM_GPU_UUID=GPU-a", "NVIDIA_VISIBLE_DEVICES=all"))
	if err == nil || !strings.Contains(err.Error(), "sets GPUMEM_GPU_UUID, NVIDIA_VISIBLE_DEVICES, which gpumem sets") {
		t.Errorf("%v, %v", adjustment, err)
	}
}

// In a pod with GPU memory, containers without a grant see no GPU, whoever set NVIDIA_VISIBLE_DEVICES.
func TestOtherContainersOfAPodSeeNoGPU(t *testing.T) {
	for name, tc := range map[string]struct {
		has     []string
		holds   bool
		set     map[string]string
		asked   bool
		wantErr string
	}{
		"all GPUs":                    {[]string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"}, true, map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}, true, ""},
		"the GPU of the grant":        {[]string{"NVIDIA_VISIBLE_DEVICES=GPU-a"}, true, map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}, true, ""},
		"in a pod without GPU memory": {[]string{"NVIDIA_VISIBLE_DEVICES=all"}, false, nil, true, ""},
		"no variable":                 {[]string{"PATH=/bin", "NVIDIA_DRIVER_CAPABILITIES=all"}, true, nil, false, ""},
		"no GPU":                      {[]string{"NVIDIA_VISIBLE_DEVICES=void"}, true, nil, false, ""},
		"no GPU, in other words":      {[]string{"NVIDIA_VISIBLE_DEVICES="}, true, nil, false, ""},
		"the driver and no GPU":       {[]string{"NVIDIA_VISIBLE_DEVICES=none"}, true, nil, false, ""},
		"twice": {[]string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"}, true, nil, true,
			"sets NVIDIA_VISIBLE_DEVICES, which gpumem sets: remove it from the pod"},
	} {
		t.Run(name, func(t *testing.T) {
			known := &fakeContainers{fail: errors.New("broken"), holds: tc.holds}
			adjustment, _, err := New("", known, zap.NewNop()).CreateContainer(t.Context(), sandbox, container(tc.has...))
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
			var set map[string]string
			for _, e := range adjustment.GetEnv() {
				set = map[string]string{e.GetKey(): e.GetValue()}
			}
			if diff := cmp.Diff(tc.set, set); diff != "" {
				t.Errorf("set (-want +got):\n%s", diff)
			}
			if (len(known.asked) > 0) != tc.asked || tc.asked && known.asked[0] != "grants of ns/p" {
				t.Errorf("asked %q, want the pod's grants: %v", known.asked, tc.asked)
			}
		})
	}
}

func TestWhoIsAskedAbout(t *testing.T) {
	for name, tc := range map[string]struct {
		container *api.Container
		known     *fakeContainers
		asked     []string
		wantErr   bool
	}{
		"a container without a grant":             {container("PATH=/bin"), &fakeContainers{fail: errors.New("broken")}, nil, false},
		"one without that names GPUs":             {container("NVIDIA_VISIBLE_DEVICES=all"), &fakeContainers{fail: errors.New("broken")}, []string{"grants of ns/p"}, false},
		"one of which nobody tells":               {container("GPUMEM_GPU_UUID=GPU-a"), &fakeContainers{}, []string{"environment of ns/p/main", "limit of ns/p/main in /kubepods/podp/c1"}, false},
		"one that was promised a level":           {container("GPUMEM_GPU_UUID=GPU-a", "GPUMEM_ENFORCEMENT=kernel", "GPUMEM_ENFORCEMENT=advisory"), &fakeContainers{}, []string{"environment of ns/p/main kernel", "limit of ns/p/main in /kubepods/podp/c1 kernel"}, false},
		"one whose limit does not hold, or worse": {container("GPUMEM_GPU_UUID=GPU-a"), &fakeContainers{fail: errors.New("broken")}, []string{"environment of ns/p/main", "limit of ns/p/main in /kubepods/podp/c1"}, true},
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

// running returns a container in a given state.
func running(id string, state api.ContainerState, env ...string) *api.Container {
	c := container(env...)
	c.Id, c.PodSandboxId, c.State = id, "s1", state
	c.Linux.CgroupsPath = "/kubepods/podp/" + id
	return c
}

var kernel = []string{"GPUMEM_GPU_UUID=GPU-a", "GPUMEM_ENFORCEMENT=kernel"}

// TestContainersThatEnd verifies that StopContainer releases reservations, and returns no error even if the
// release fails.
func TestContainersThatEnd(t *testing.T) {
	known := &fakeContainers{fail: errors.New("broken")}
	p := New("", known, zap.NewNop())
	for _, c := range []*api.Container{running("c1", api.ContainerState_CONTAINER_RUNNING, kernel...), running("c2", api.ContainerState_CONTAINER_RUNNING, "PATH=/bin")} {
		if _, err := p.StopContainer(t.Context(), sandbox, c); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"end of /kubepods/podp/c1 kernel"}, known.asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// slow is a Containers whose limits take long to set, and fail for some control groups.
type slow struct {
	fakeContainers
	mu    sync.Mutex
	fails map[string]bool
	held  map[string]int
}

func (s *slow) SetLimit(ctx context.Context, _, _, _, cgroupsPath string, _ map[string]string) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails[cgroupsPath] {
		return errors.New("the driver is busy")
	}
	s.held[cgroupsPath]++
	return nil
}

func (s *slow) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// TestContainersThatRanBefore verifies that all containers that started while the plugin was disconnected get
// their limits, however long that takes. Until then, UnlimitedContainer returns an error with a container's
// name.
func TestContainersThatRanBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := &slow{fails: map[string]bool{"/kubepods/podp/c2": true, "/kubepods/podp/c3": true}, held: make(map[string]int)}
		p := New("", known, zap.NewNop())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.catchUp(ctx, make(chan struct{}))
		}()
		synctest.Wait()
		if err := p.UnlimitedContainer(); err != nil {
			t.Errorf("no container runs: %v", err)
		}
		begin := time.Now()
		stopping := running("c3", api.ContainerState_CONTAINER_RUNNING, kernel...)
		if _, err := p.Synchronize(t.Context(), []*api.PodSandbox{sandbox}, []*api.Container{
			running("c1", api.ContainerState_CONTAINER_RUNNING, kernel...), running("c2", api.ContainerState_CONTAINER_RUNNING, kernel...), stopping,
			running("c4", api.ContainerState_CONTAINER_RUNNING, kernel...),
			running("c5", api.ContainerState_CONTAINER_STOPPED, kernel...), running("c6", api.ContainerState_CONTAINER_RUNNING, "PATH=/bin"),
		}); err != nil || time.Since(begin) > 0 {
			t.Errorf("%v, after %s: the runtime waits 2 s", err, time.Since(begin))
		}
		wantLate := func(says string) {
			t.Helper()
			if err := p.UnlimitedContainer(); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, want %q", err, says)
			}
		}
		wantLate("container ns/p/main runs, and it is not known yet whether it has its limit")
		time.Sleep(4 * time.Second)
		synctest.Wait()
		wantLate("container ns/p/main runs without its limit: the driver is busy")
		known.change(func() { known.fails = nil })
		if _, err := p.StopContainer(t.Context(), sandbox, stopping); err != nil {
			t.Error(err)
		}
		time.Sleep(limitRetryInterval + time.Second)
		synctest.Wait()
		if err := p.UnlimitedContainer(); err != nil {
			t.Errorf("all have their limits: %v", err)
		}
		cancel()
		<-done
		if diff := cmp.Diff(map[string]int{"/kubepods/podp/c1": 1, "/kubepods/podp/c2": 1, "/kubepods/podp/c4": 1}, known.held); diff != "" {
			t.Errorf("limits were set (-want +got):\n%s", diff)
		}
	})
}

func TestNoRuntime(t *testing.T) {
	p := New(t.TempDir()+"/nri.sock", &fakeContainers{}, zap.NewNop())
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
