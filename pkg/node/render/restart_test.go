package render_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/nri"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
	"github.com/gpumem/gpumem/pkg/node/render"
)

// create creates a container with an environment, like the runtime, and returns the resulting environment.
func create(t *testing.T, n *node, name string, env map[string]string) (map[string]string, error) {
	t.Helper()
	var has []string
	for _, key := range slices.Sorted(maps.Keys(env)) {
		has = append(has, key+"="+env[key])
	}
	adjusted, _, err := nri.New("", n.Containers, zap.NewNop()).CreateContainer(t.Context(), &api.PodSandbox{Namespace: "ns", Name: "a"}, &api.Container{Name: name, Env: has})
	out := maps.Clone(env)
	for _, change := range adjusted.GetEnv() {
		out[change.GetKey()] = change.GetValue()
	}
	return out, err
}

// Settings change while a pod runs, and its containers restart. The kubelet reuses its stored answers, and the
// runtime calls a new process of the plugin, with or without the checkpoint.
func TestARestartedContainerHasTheGrantOfItsFirstStart(t *testing.T) {
	strategy := func(s render.Strategy) func(*deviceplugin.Config) {
		return func(c *deviceplugin.Config) { c.Containers.Strategy = s }
	}
	shareCores := func(is bool) func(*deviceplugin.Config) {
		return func(c *deviceplugin.Config) { c.Containers.ShareCores = is }
	}
	inShares := func(mib int64) func(*gpu.Inventory) {
		return func(inv *gpu.Inventory) {
			inv.UnitMiB = 0
			for i := range inv.Devices {
				inv.Devices[i].ShareMiB, inv.Devices[i].Allocatable = mib, 10
			}
		}
	}
	withMPS := func(is bool) func(*gpu.Inventory) {
		return func(inv *gpu.Inventory) {
			inv.MPS, inv.Enforcement = is, gpu.EnforcementAdvisory
			if is {
				inv.Enforcement = gpu.EnforcementMPS
			}
		}
	}
	for name, tc := range map[string]struct {
		was, is          func(*deviceplugin.Config)
		wasGPUs, areGPUs func(*gpu.Inventory)
		recordedAlone    bool // only the record contains all of the old settings
	}{
		"envvar, then cdi-cri":           {was: strategy(render.Envvar), is: strategy(render.CDICRI)},
		"envvar, then volume-mounts":     {was: strategy(render.Envvar), is: strategy(render.VolumeMounts)},
		"volume-mounts, then envvar":     {was: strategy(render.VolumeMounts), is: strategy(render.Envvar)},
		"cdi-cri, then envvar":           {was: strategy(render.CDICRI), is: strategy(render.Envvar)},
		"cdi-annotations, then envvar":   {was: strategy(render.CDIAnnotations), is: strategy(render.Envvar)},
		"cores of shares are turned off": {was: shareCores(true), is: shareCores(false), wasGPUs: inShares(800), areGPUs: inShares(800)},
		"cores of shares are turned on":  {was: shareCores(false), is: shareCores(true), wasGPUs: inShares(800), areGPUs: inShares(800)},
		"shares are smaller":             {wasGPUs: inShares(800), areGPUs: inShares(700), recordedAlone: true},
		"the MPS daemon is gone":         {wasGPUs: withMPS(true), areGPUs: withMPS(false)},
		"there is an MPS daemon":         {wasGPUs: withMPS(false), areGPUs: withMPS(true)},
		"the level is stronger":          {areGPUs: func(inv *gpu.Inventory) { inv.Enforcement = gpu.EnforcementKernel }},
	} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, record lost: %t", name, lost), func(t *testing.T) {
				if lost && tc.recordedAlone {
					t.Skip("without the record, the environment does not tell enough")
				}
				dir := t.TempDir()
				p := pod("a", 1, uuidB, container("warm", placement.Init, 2), container("main", placement.App, 3))
				n := newNode(t, func(c *deviceplugin.Config) {
					if c.Record = checkpoint.File(filepath.Join(dir, "first.json")); tc.was != nil {
						tc.was(c)
					}
				}, []string{"ns/a"}, p)
				if tc.wasGPUs != nil {
					n.Source.Set(tc.wasGPUs)
				}
				answers := admit(t, n)
				record := "first.json"
				if lost {
					record = "none.json"
				}
				n.Begin(t, func(c *deviceplugin.Config) {
					if c.Record = checkpoint.File(filepath.Join(dir, record)); tc.is != nil {
						tc.is(c)
					}
				})
				if tc.areGPUs != nil {
					n.Source.Set(tc.areGPUs)
				}
				for container, env := range answers {
					got, err := create(t, n, container, env)
					if err != nil {
						t.Errorf("%s: %v", container, err)
					}
					if diff := cmp.Diff(env, got); diff != "" {
						t.Errorf("%s: environment (-first start +restart):\n%s", container, diff)
					}
				}
			})
		}
	}
}

// admit admits pod a with an init container and a second container, and returns the kubelet's stored answers.
func admit(t *testing.T, n *node) map[string]map[string]string {
	t.Helper()
	out := make(map[string]map[string]string)
	for name, ids := range map[string][]string{"warm": {"bbbbbbbb-0", "bbbbbbbb-1"}} {
		answer, err := n.Allocate(t.Context(), ids...)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = answer.GetEnvs()
	}
	ids := []string{"bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2"}
	answer, err := n.Allocate(t.Context(), ids...)
	if err != nil {
		t.Fatal(err)
	}
	out["main"] = answer.GetEnvs()
	n.Kubelet.Give("a", "main", ids)
	n.Pods.Settle("a")
	return out
}

// Two equal pods request GPU memory only in init containers, and the kubelet admits the younger pod first.
// PodResources lists neither pod's allocation, so only the environment shows which pod has which grant.
func TestEqualPodsOfInitContainersHaveTheirOwnGrants(t *testing.T) {
	equal := func(name string, age int64, on gpu.UUID) allocation.Pod {
		return pod(name, age, on, container("warm", placement.Init, 2), placement.Container{Name: "main", Kind: placement.App})
	}
	n := newNode(t, nil, []string{"ns/a", "ns/b"}, equal("a", 1, uuidA), equal("b", 2, uuidB))
	first, err := n.Allocate(t.Context(), "aaaaaaaa-0", "aaaaaaaa-1") // for pod b
	if err != nil {
		t.Fatal(err)
	}
	n.Pods.Settle("b")
	second, err := n.Allocate(t.Context(), "bbbbbbbb-0", "bbbbbbbb-1")
	if err != nil {
		t.Fatal(err)
	}
	n.Pods.Settle("a")
	plugin := nri.New("", n.Containers, zap.NewNop())
	for range 2 { // init containers can restart
		for name, env := range map[string]map[string]string{"b": first.GetEnvs(), "a": second.GetEnvs()} {
			sandbox, c := &api.PodSandbox{Namespace: "ns", Name: name}, &api.Container{Name: "warm", Linux: &api.LinuxContainer{CgroupsPath: "/kubepods/" + name}}
			for _, key := range slices.Sorted(maps.Keys(env)) {
				c.Env = append(c.Env, key+"="+env[key])
			}
			adjusted, _, err := plugin.CreateContainer(t.Context(), sandbox, c)
			if err != nil || len(adjusted.GetEnv()) > 0 {
				t.Errorf("pod %s: environment changes: %v, %v", name, adjusted.GetEnv(), err)
			}
			if err := plugin.StartContainer(t.Context(), sandbox, c); err != nil {
				t.Errorf("pod %s: %v", name, err)
			}
		}
		granted, err := n.Containers.Grants(t.Context())
		has := make(map[string]gpu.UUID)
		for _, g := range granted {
			has[g.Name] = g.Device
		}
		if diff := cmp.Diff(map[string]gpu.UUID{"a": uuidB, "b": uuidA}, has); diff != "" || err != nil {
			t.Errorf("GPUs of pods (-want +got):\n%s%v", diff, err)
		}
	}
}

// The MPS daemon stops answering between the kubelet's two calls for one container.
func TestAContainerStartsWithTwoAnswersThatDiffer(t *testing.T) {
	for _, lost := range []bool{false, true} {
		p := pod("a", 1, uuidB, placement.Container{Name: "main", Kind: placement.App, Units: 1, Cores: 2})
		n := newNode(t, nil, []string{"ns/a"}, p)
		n.Source.Set(func(inv *gpu.Inventory) { inv.MPS, inv.Enforcement = true, gpu.EnforcementMPS })
		cores := plugintest.Connect(t, n.Server.Cores())
		memory := n.Client
		n.Client = cores
		first, err := n.Allocate(t.Context(), "bbbbbbbb-c0", "bbbbbbbb-c1")
		if err != nil {
			t.Fatal(err)
		}
		n.Source.Set(func(inv *gpu.Inventory) { inv.MPS, inv.Enforcement = false, gpu.EnforcementAdvisory })
		n.Client = memory
		second, err := n.Allocate(t.Context(), "bbbbbbbb-0")
		if err != nil {
			t.Fatal(err)
		}
		n.Kubelet.Give("a", "main", []string{"bbbbbbbb-0", "bbbbbbbb-c0", "bbbbbbbb-c1"})
		if lost {
			n.Begin(t, nil)
		}
		env := maps.Clone(first.GetEnvs())
		maps.Copy(env, second.GetEnvs())
		got, err := create(t, n, "main", env)
		if err != nil {
			t.Errorf("record lost: %t: the pod sets nothing, and its container does not start: %v", lost, err)
		}
		if diff := cmp.Diff(env, got); diff != "" {
			t.Errorf("record lost: %t: environment (-first start +restart):\n%s", lost, diff)
		}
	}
}

// The kubelet lists a pod that the watch has not delivered. An image with the value "all" must not show all
// GPUs to the pod's other containers.
func TestASidecarOfAPodThatTheWatchHasNotShown(t *testing.T) {
	n := newNode(t, nil, []string{"ns/a"})
	ids, err := n.Preferred(t.Context(), n.Free(), nil, 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Allocate(t.Context(), ids...); err != nil {
		t.Fatal(err)
	}
	n.Kubelet.Give("a", "main", ids)
	if got, err := create(t, n, "aside", map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}); err != nil || got["NVIDIA_VISIBLE_DEVICES"] != "void" {
		t.Errorf("environment %v, %v; want no GPU", got, err)
	}
	env := map[string]string{"GPUMEM_GPU_UUID": "x", "NVIDIA_VISIBLE_DEVICES": "all"}
	if got, err := create(t, n, "aside", env); err == nil || !strings.Contains(err.Error(), "the API server has not reported the pod yet") {
		t.Errorf("a container that names a GPU itself has the environment %v, %v", got, err)
	}
}
