package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/nri"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

const (
	cgroup = "/kubepods/pod1/container1"
	// other is the UID of an earlier claim of the same name.
	other = "uid-gone"
)

// groups is a kernel that records its calls.
type groups struct {
	asked []string
	err   error
}

func (g *groups) SetLimit(_ context.Context, group string, devices []gpu.Device, limitMiB int64) error {
	g.asked = append(g.asked, fmt.Sprintf("%s %d MiB of %s", group, limitMiB, devices[len(devices)-1].UUID))
	return g.err
}

func (g *groups) Release(_ context.Context, group string) error {
	g.asked = append(g.asked, group+" free")
	return g.err
}

func TestContainersStartWithTheirLimits(t *testing.T) {
	fault := errors.New("fault")
	pods := listed(t, userOf("pod", []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("a")}}, map[string]string{"main": "gpu", "aside": ""}))
	for name, c := range map[string]struct {
		level     gpu.Enforcement
		change    func(env map[string]string)
		namespace string
		container string
		gone      bool // the GPU is gone
		ready     error
		kernel    error
		want      string
		asked     []string
	}{
		"kernel":                        {level: gpu.EnforcementKernel, asked: []string{cgroup + " 2048 MiB of " + string(plugintest.GPUB), cgroup + " free"}},
		"kernel, and it cannot":         {level: gpu.EnforcementKernel, kernel: fault, want: "its limit of GPU memory does not hold: fault", asked: []string{cgroup + " 2048 MiB of " + string(plugintest.GPUB), cgroup + " free"}},
		"kernel, of a GPU that is gone": {level: gpu.EnforcementKernel, gone: true, want: "it has a GPU that is not on this node: " + gpuB, asked: []string{cgroup + " free"}},
		"MPS":                           {level: gpu.EnforcementMPS},
		"MPS is away":                   {level: gpu.EnforcementMPS, ready: fault, want: "fault"},
		"advisory, and MPS is away":     {level: gpu.EnforcementAdvisory, ready: fault},
		"a claim that was given back":   {level: gpu.EnforcementAdvisory, change: func(env map[string]string) { env[claimOf] = other }, want: "it does not use the claim that its environment names"},
		"a claim of others":             {level: gpu.EnforcementAdvisory, namespace: "theirs", want: "its claim is not prepared"},
		"no claim":                      {level: gpu.EnforcementKernel, change: func(env map[string]string) { delete(env, claimOf) }},
		"a claim of another container":  {level: gpu.EnforcementAdvisory, container: "aside", want: "it does not use the claim that its environment names"},
	} {
		t.Run(name, func(t *testing.T) {
			inv := plugintest.TwoGPUs()
			inv.Enforcement = c.level
			r := newRig(t, inv, newMemory())
			if got := r.one(t, allocated("a", result(gpuB, 2, 0))); got.Err != nil {
				t.Fatal(got.Err)
			}
			env := r.disk.env(t, "uid-a")
			if c.change != nil {
				c.change(env)
			}
			if c.gone {
				r.source.Set(func(inv *gpu.Inventory) { inv.Devices = inv.Devices[:1] })
			}
			r.ready = c.ready
			kernel := &groups{err: c.kernel}
			namespace := "ml"
			if c.namespace != "" {
				namespace = c.namespace
			}
			containers := r.Containers(kernel, NewUsers(pods, r.Driver))
			err := containers.SetLimit(t.Context(), namespace, "pod", cmp.Or(c.container, "main"), cgroup, env)
			if got := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && got != c.want {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if err := containers.Release(t.Context(), cgroup, env); !errors.Is(err, c.kernel) {
				t.Errorf("error %v, want %v", err, c.kernel)
			}
			if diff := gocmp.Diff(c.asked, kernel.asked); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// In a pod with a claim, a container that does not use the claim sees no GPU. HoldsMemory reports that the pod
// has GPU memory.
func TestHolds(t *testing.T) {
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	claim := allocated("a", result(gpuB, 2, 0))
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "mine", UID: "uid-of-mine"}}
	r.one(t, claim)
	r.one(t, allocated("unused", result(gpuB, 2, 0)))
	// The kubelet prepares a shared claim once, for the first pod.
	later := userOf("later", []v1.PodResourceClaim{{Name: "shared", ResourceClaimName: new("a")}}, map[string]string{"main": "shared", "aside": ""})
	containers := r.Containers(&groups{}, NewUsers(listed(t, later), r.Driver))
	for pod, want := range map[[2]string]bool{{"ml", "mine"}: true, {"ml", "later"}: true, {"theirs", "later"}: false, {"ml", "other"}: false, {"theirs", "mine"}: false, {"ml", ""}: false} {
		if got := containers.HoldsMemory(t.Context(), pod[0], pod[1]); got != want {
			t.Errorf("pod %v holds GPU memory: %t, want %t", pod, got, want)
		}
		// The image or envFrom can set gpumem's variables.
		if env, ok, err := containers.Environment(t.Context(), pod[0], pod[1], "aside", map[string]string{"GPUMEM_GPU_UUID": "GPU-a"}); len(env) > 0 || ok != want || err != nil {
			t.Errorf("container of pod %v without a claim: %v, %t, %v; want none of the variables: %t", pod, env, ok, err, want)
		}
		// Only the API server's pod proves that a container uses a claim.
		known := pod == [2]string{"ml", "later"}
		for container, uses := range map[string]bool{"main": true, "aside": false} {
			env, ok, err := containers.Environment(t.Context(), pod[0], pod[1], container, r.disk.env(t, "uid-a"))
			if len(env) > 0 || ok != (known && !uses) || (err == nil) != known {
				t.Errorf("container %s of pod %v names a claim: %v, %t, %v", container, pod, env, ok, err)
			}
		}
	}
}

// The owner of a claim can read its UID, and write it into the environment of a container that does not use it.
func TestAContainerThatNamesAnothersClaimIsNotMade(t *testing.T) {
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	r.one(t, allocated("a", result(gpuB, 2, 0)))
	mine := userOf("mine", []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("a")}}, map[string]string{"main": "gpu", "aside": ""})
	plugin := nri.New("", r.Containers(&groups{}, NewUsers(listed(t, mine), r.Driver)), zap.NewNop())
	aside := &api.Container{Name: "aside", Env: []string{"GPUMEM_GPU_UUID=x", "GPUMEM_CLAIM=uid-a", "NVIDIA_VISIBLE_DEVICES=all"}, Linux: &api.LinuxContainer{CgroupsPath: cgroup}}
	sandbox := &api.PodSandbox{Namespace: "ml", Name: "mine"}
	if adjusted, _, err := plugin.CreateContainer(t.Context(), sandbox, aside); err == nil || !strings.Contains(err.Error(), "sets GPUMEM_CLAIM") {
		t.Errorf("it is made with %v, %v", adjusted, err)
	}
	if err := plugin.StartContainer(t.Context(), sandbox, aside); err == nil {
		t.Error("it is started")
	}
}
