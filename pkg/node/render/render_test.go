package render_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
	"github.com/gpumem/gpumem/pkg/node/render"
	"github.com/gpumem/gpumem/pkg/node/usage"
)

// kernel is a function that sets the limit of a control group or, without devices, releases the group.
type kernel func(group string, devices []gpu.Device, limitMiB int64) error

func (k kernel) SetLimit(_ context.Context, group string, devices []gpu.Device, limitMiB int64) error {
	return k(group, devices, limitMiB)
}

func (k kernel) Release(_ context.Context, group string) error { return k(group, nil, 0) }

// promise returns the level in a container's environment.
func promise(level gpu.Enforcement) map[string]string {
	return map[string]string{"GPUMEM_ENFORCEMENT": string(level)}
}

func TestEnvironmentOfAVeryContainer(t *testing.T) {
	p := pod("a", 1, uuidB, container("one", placement.App, 3), container("two", placement.App, 1))
	n := newNode(t, nil, nil, p)
	n.LevelIs(gpu.EnforcementMPS)
	n.Source.Set(func(inv *gpu.Inventory) { inv.MPS = true })
	if _, err := n.Admit(t, p); err != nil {
		t.Fatal(err)
	}
	n.LevelIs(gpu.EnforcementAdvisory) // the node's level changes, and the container keeps its level
	n.Source.Set(func(inv *gpu.Inventory) { inv.MPS = false })
	given := map[string]string{"GPUMEM_ENFORCEMENT": "mps", "CUDA_MPS_PIPE_DIRECTORY": "/run/gpumem/mps/pipe"}
	for name, limit := range map[string]string{"one": "3072", "two": "1024"} {
		env, ok, err := n.Containers.Environment(t.Context(), "ns", "a", name, given)
		if err != nil || !ok {
			t.Fatalf("%s: %t, %v", name, ok, err)
		}
		got := map[string]string{}
		for _, key := range []string{"NVIDIA_VISIBLE_DEVICES", "GPUMEM_LIMIT_MIB", "GPUMEM_ENFORCEMENT", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"} {
			got[key] = env[key]
		}
		want := map[string]string{
			"NVIDIA_VISIBLE_DEVICES": string(uuidB), "GPUMEM_LIMIT_MIB": limit, "GPUMEM_ENFORCEMENT": "mps", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=" + limit + "M",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	// The image or envFrom can set gpumem's variables.
	if env, ok, err := n.Containers.Environment(t.Context(), "ns", "a", "aside", given); len(env) > 0 || !ok || err != nil {
		t.Errorf("a container that asks for nothing: %v, %t, %v; want none of the variables", env, ok, err)
	}
	if env, ok, err := n.Containers.Environment(t.Context(), "ns", "unknown", "aside", given); ok || err != nil {
		t.Errorf("a container of a pod that is not known: %v, %t, %v", env, ok, err)
	}
	n.Kubelet.Fail = errors.New("no answer")
	if _, _, err := n.Containers.Environment(t.Context(), "ns", "a", "one", given); err == nil {
		t.Error("the kubelet does not answer, and the container is made")
	}
}

func TestWhichPodsHaveGPUMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		unlisted, deaf bool
		pod            string
		want           bool
	}{
		"one that asks for it":                       {pod: "known", want: true},
		"one that does not":                          {pod: "other", want: false},
		"one that the kubelet alone knows, and late": {pod: "served", want: true},
		"before all pods are known":                  {unlisted: true, pod: "served", want: true},
		"before that, and it is known":               {unlisted: true, deaf: true, pod: "known", want: true},
		"before that, and it has none":               {unlisted: true, pod: "other", want: false},
		"before that, and the kubelet is silent":     {unlisted: true, deaf: true, pod: "served", want: false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, func(c *deviceplugin.Config) { c.KubeletWait = 20 * time.Millisecond }, nil, pod("known", 1, uuidA, app(1)))
			n.Pods.Unlisted, n.Kubelet.Deaf = tc.unlisted, tc.deaf
			n.Kubelet.Give("served", "main", []string{"bbbbbbbb-0"})
			if got := n.Containers.HoldsMemory(t.Context(), "ns", tc.pod); got != tc.want {
				t.Errorf("holds %v, want %v", got, tc.want)
			}
			if n.Containers.HoldsMemory(t.Context(), "other", tc.pod) {
				t.Error("so does its namesake in another namespace")
			}
		})
	}
}

func TestTheKernelsLimitHoldsOrTheContainerDoesNotStart(t *testing.T) {
	p := pod("a", 1, uuidB, app(3))
	var asked []string
	var refuses error
	n := newNode(t, func(c *deviceplugin.Config) {
		c.Kernel = kernel(func(group string, devices []gpu.Device, limitMiB int64) error {
			if devices == nil {
				asked = append(asked, group+" is released")
				return nil
			}
			asked = append(asked, fmt.Sprint(group, " ", devices[0].UUID, " ", limitMiB))
			return refuses
		})
	}, nil, p)
	if _, err := n.Admit(t, p); err != nil {
		t.Fatal(err)
	}
	hold := func() error {
		return n.Containers.SetLimit(t.Context(), "ns", "a", "main", "/kubepods/poda/c1", promise(n.State.Recorded(n.Kubelet.Allocated()[0]).Level))
	}
	if err := hold(); err != nil || len(asked) != 0 {
		t.Errorf("advisory: asked %v, %v", asked, err)
	}
	n.State.Put(grants.Grant{
		Slots: n.Kubelet.Allocated()[0].Slots, Level: gpu.EnforcementKernel, GPUs: []grants.GPU{{UUID: uuidB, MiB: 3072}},
	})
	// The image sets a level without a limit, and the runtime created the container while the plugin was
	// disconnected.
	if err := n.Containers.SetLimit(t.Context(), "ns", "a", "main", "/kubepods/poda/c1", promise(gpu.EnforcementAdvisory)); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"/kubepods/poda/c1 " + string(uuidB) + " 3072"}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	refuses = errors.New("no space left")
	if err := hold(); err == nil || !strings.Contains(err.Error(), "its limit of GPU memory does not hold: no space left") {
		t.Errorf("error %v", err)
	}
	if want := "ns/a GPUMemoryNotEnforced"; !slices.Contains(n.Notes.All(), want) {
		t.Errorf("events %v, want %s", n.Notes.All(), want)
	}
	if err := n.Containers.SetLimit(t.Context(), "ns", "a", "main", "a:b:c", promise(gpu.EnforcementKernel)); err == nil {
		t.Error("a control group that cannot be read was taken")
	}
	asked, refuses = nil, nil
	for _, level := range []gpu.Enforcement{gpu.EnforcementMPS, gpu.EnforcementKernel} {
		if err := n.Containers.Release(t.Context(), "/kubepods/poda/c1", promise(level)); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"/kubepods/poda/c1 is released"}, asked); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
}

// A running container gets its limit even if its GPU is no longer offered. While the container has no limit,
// the node's level is not kernel, and a node with --enforcement=kernel offers nothing.
func TestAContainerOnAGPUThatIsNotOfferedIsLimited(t *testing.T) {
	p := pod("a", 1, uuidB, app(3))
	var asked []string
	n := newNode(t, func(c *deviceplugin.Config) {
		c.Kernel = kernel(func(group string, devices []gpu.Device, limitMiB int64) error {
			asked = append(asked, fmt.Sprint(group, " ", devices[0].UUID, " ", limitMiB))
			return nil
		})
	}, nil, p)
	n.LevelIs(gpu.EnforcementKernel)
	if _, err := n.Admit(t, p); err != nil {
		t.Fatal(err)
	}
	n.Source.Set(func(inv *gpu.Inventory) {
		for i := range inv.Devices {
			inv.Devices[i].Status = gpu.Unhealthy("enforcement kernel: container ns/a/main runs, and it is not known yet whether it has its limit")
		}
	})
	if err := n.Containers.SetLimit(t.Context(), "ns", "a", "main", "/kubepods/poda/c1", promise(gpu.EnforcementKernel)); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"/kubepods/poda/c1 " + string(uuidB) + " 3072"}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	if env, _, err := n.Containers.Environment(t.Context(), "ns", "a", "main", promise(gpu.EnforcementKernel)); err == nil {
		t.Errorf("one is made there: %v", env)
	}
}

// TestAContainerKeepsTheLevelThatItWasGiven covers two containers of a pod with different levels. A plugin that
// has just started must not trust the pod's annotation.
func TestAContainerKeepsTheLevelThatItWasGiven(t *testing.T) {
	p := pod("a", 1, uuidB, container("one", placement.App, 3), container("two", placement.App, 1))
	var asked []string
	change := func(c *deviceplugin.Config) {
		c.Kernel = kernel(func(group string, _ []gpu.Device, limitMiB int64) error {
			asked = append(asked, fmt.Sprint(group, " ", limitMiB))
			return nil
		})
	}
	n := newNode(t, change, nil, p)
	if _, err := n.Admit(t, p); err != nil { // both containers at level advisory
		t.Fatal(err)
	}
	n.Begin(t, change)
	for container, level := range map[string]gpu.Enforcement{"one": gpu.EnforcementKernel, "two": gpu.EnforcementAdvisory} {
		env, _, err := n.Containers.Environment(t.Context(), "ns", "a", container, promise(level))
		if err != nil || env["GPUMEM_ENFORCEMENT"] != string(level) {
			t.Errorf("%s: environment %v, %v; want the level %s", container, env, err, level)
		}
		if err := n.Containers.SetLimit(t.Context(), "ns", "a", container, "/"+container, promise(level)); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"/one 3072"}, asked); diff != "" {
		t.Errorf("asked for limits (-want +got):\n%s", diff)
	}
}

// The grant of a pod with only init containers counts once, for memory and cores, whatever its annotations
// contain.
func TestAPodOfInitContainersAloneHasItsGrant(t *testing.T) {
	warm := container("warm", placement.Init, 3)
	warm.Cores = 20
	p := pod("a", 1, "", warm)
	p.Admitted = true
	memory := []gpu.SlotID{"bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2"}
	cores := (func() (out []gpu.SlotID) {
		for i := range 20 {
			out = append(out, gpu.SlotID(fmt.Sprint("bbbbbbbb-c", i)))
		}
		return out
	})()
	inv := plugintest.TwoGPUs()
	given := func(slots []gpu.SlotID) grants.Grant {
		g := allocation.Grant{Resource: slots[0].Resource(), Devices: inv.Devices[1:2], SlotsPerDevice: len(slots), Slots: slots}
		return grants.NewGrant(allocation.Attributed{Pod: p.Pod, Container: warm}, g, inv, render.DefaultConfig().Response(g.Resource, g, inv))
	}
	for name, tc := range map[string]struct {
		given []grants.Grant
		want  string // error of Environment
	}{
		"memory first": {[]grants.Grant{given(memory), given(cores)}, ""},
		"cores first":  {[]grants.Grant{given(cores), given(memory)}, ""},
		"cores alone":  {[]grants.Grant{given(cores)}, "pod ns/a has 0 GPUs of this node and asks for 1"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil, []string{"ns/a"}, p)
			for _, g := range tc.given {
				n.State.Put(g)
			}
			env, _, err := n.Containers.Environment(t.Context(), "ns", "a", "warm", nil)
			grants, badGrants := n.Containers.Grants(t.Context())
			if badGrants != nil {
				t.Error(badGrants)
			}
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) || len(grants) > 0 {
					t.Errorf("%v, grants %v; want %q and none", err, grants, tc.want)
				}
				return
			}
			if err != nil || env["NVIDIA_VISIBLE_DEVICES"] != string(uuidB) || env["GPUMEM_LIMIT_MIB"] != "3072" {
				t.Errorf("%v, environment %v", err, env)
			}
			want := []usage.Grant{{Namespace: "ns", Name: "a", Container: "warm", Device: uuidB, Bytes: 3 << 30}}
			if diff := cmp.Diff(want, grants); diff != "" {
				t.Errorf("grants (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAnImageTakesNoLimitFromAnInitContainer covers an image that sets a level without a limit, while the
// runtime does not call the plugin at the container's creation.
func TestAnImageTakesNoLimitFromAnInitContainer(t *testing.T) {
	p := pod("a", 1, uuidA, container("prepare", placement.Init, 2), app(3))
	var asked []string
	n := newNode(t, func(c *deviceplugin.Config) {
		c.Kernel = kernel(func(group string, _ []gpu.Device, limitMiB int64) error {
			asked = append(asked, fmt.Sprint(group, " ", limitMiB))
			return nil
		})
	}, nil, p)
	n.LevelIs(gpu.EnforcementKernel)
	if _, err := n.Admit(t, p); err != nil {
		t.Fatal(err)
	}
	if err := n.Containers.SetLimit(t.Context(), "ns", "a", "prepare", "/kubepods/poda/c1", promise(gpu.EnforcementAdvisory)); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"/kubepods/poda/c1 2048"}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// TestInitContainersHaveLimits verifies that each init container is limited to its request, although the
// kubelet does not list init containers.
func TestInitContainersHaveLimits(t *testing.T) {
	prepare := container("prepare", placement.Init, 2)
	two := pod("two", 3, uuidA, container("prepare", placement.Init, 4))
	two.Request.Count = 2
	two.Assignment = placement.Assignment{Shares: []placement.Share{{Device: uuidB}, {Device: uuidA}}}.WithShares(two.Request)
	two.Index = "1,0"
	gone := pod("gone", 4, "GPU-cccccccc-0000-0000-0000-000000000000", prepare)
	for name, tc := range map[string]struct {
		pod      allocation.Pod
		held     gpu.UUID // GPU of the pod's main container
		promised gpu.Enforcement
		asked    []string // calls for the limit
		visible  string
		wantErr  string
	}{
		"as the pod's other containers, whatever is written": {pod("p", 1, uuidA, prepare, app(3)), uuidB, gpu.EnforcementKernel, []string{"[1] 2048"}, string(uuidB), ""},
		"alone with a grant":    {pod("p", 1, uuidA, prepare), "", gpu.EnforcementKernel, []string{"[0] 2048"}, string(uuidA), ""},
		"of two GPUs":           {two, "", gpu.EnforcementKernel, []string{"[0 1] 2048"}, string(uuidA) + "," + string(uuidB), ""},
		"promised none":         {pod("p", 1, uuidA, prepare), "", gpu.EnforcementMPS, nil, string(uuidA), ""},
		"that asks for none":    {pod("p", 1, uuidA, container("prepare", placement.Init, 0), app(3)), uuidA, gpu.EnforcementAdvisory, nil, "", ""},
		"that says so itself":   {pod("p", 1, uuidA, app(3)), "", gpu.EnforcementKernel, nil, "", "neither the kubelet nor the API server tells"},
		"of a GPU that is gone": {gone, "", gpu.EnforcementKernel, nil, "", "pod ns/gone has 0 GPUs of this node and asks for 1"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			n := newNode(t, func(c *deviceplugin.Config) {
				c.Kernel = kernel(func(_ string, devices []gpu.Device, limitMiB int64) error {
					var indexes []int
					for _, d := range devices {
						indexes = append(indexes, d.Index)
					}
					asked = append(asked, fmt.Sprint(indexes, " ", limitMiB))
					return nil
				})
			}, nil, tc.pod)
			if tc.held != "" {
				other := func(id string) bool { return !strings.HasPrefix(id, string(tc.held)[len("GPU-"):][:8]) }
				n.Kubelet.Give(tc.pod.Pod.Name, "main", slices.DeleteFunc(n.Free(), other)[:3])
			}
			env, _, _ := n.Containers.Environment(t.Context(), "ns", tc.pod.Pod.Name, "prepare", promise(tc.promised))
			if got := env["NVIDIA_VISIBLE_DEVICES"]; got != tc.visible {
				t.Errorf("it sees %q, want %q", got, tc.visible)
			}
			if tc.visible != "" && (env["GPUMEM_ENFORCEMENT"] != string(tc.promised) || env["GPUMEM_LIMIT_MIB"] != "2048") {
				t.Errorf("environment %v", env)
			}
			if grants, err := n.Containers.Grants(t.Context()); err != nil || tc.visible != "" && !slices.Contains(grants, usage.Grant{
				Namespace: "ns", Name: tc.pod.Pod.Name, Container: "prepare", Device: gpu.UUID(strings.Split(tc.visible, ",")[0]), Bytes: 2 << 30,
			}) {
				t.Errorf("granted %v, %v", grants, err)
			}
			err := n.Containers.SetLimit(t.Context(), "ns", tc.pod.Pod.Name, "prepare", "/kubepods/podp/c1", promise(tc.promised))
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.asked, asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

// Without grants, package usage would count the containers' memory as foreign, or report old values.
func TestGrantsAreKnownWhileTheKubeletIsSilent(t *testing.T) {
	p := pod("a", 1, uuidB, app(3))
	n := newNode(t, func(c *deviceplugin.Config) { c.KubeletWait = 20 * time.Millisecond }, nil, p)
	if _, err := n.Admit(t, p); err != nil {
		t.Fatal(err)
	}
	n.Kubelet.Fail = errors.New("no answer")
	want := []usage.Grant{{Namespace: "ns", Name: "a", Container: "main", Device: uuidB, Bytes: 3 << 30}}
	if got, err := n.Containers.Grants(t.Context()); err != nil || !slices.Equal(got, want) {
		t.Errorf("grants %v, %v; want %v", got, err, want)
	}
	n.Begin(t, func(c *deviceplugin.Config) { c.KubeletWait = 20 * time.Millisecond })
	if got, err := n.Containers.Grants(t.Context()); err == nil {
		t.Errorf("grants %v of a kubelet that has listed nothing yet", got)
	}
}

// TestContainersWhoseGrantIsUnknown covers a container on an unknown GPU, a container without a recorded grant,
// and a container whose GPU is gone.
func TestContainersWhoseGrantIsUnknown(t *testing.T) {
	p := pod("a", 1, uuidB, app(3))
	p.Assignment.Enforcement = gpu.EnforcementMPS
	n := newNode(t, nil, nil, p)
	n.Kubelet.Give("strange", "main", []string{"cccccccc-0"})
	n.Kubelet.Give("a", "main", []string{"bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2"})
	if _, _, err := n.Containers.Environment(t.Context(), "ns", "strange", "main", nil); err == nil || !strings.Contains(err.Error(), "its GPU memory is unknown") {
		t.Errorf("a container of an unknown GPU: %v", err)
	}
	// Neither the table nor the environment contains a level.
	if env, ok, err := n.Containers.Environment(t.Context(), "ns", "a", "main", nil); env["GPUMEM_ENFORCEMENT"] != "mps" || !ok || err != nil {
		t.Errorf("a container without a record: %v, %t, %v", env, ok, err)
	}
	n.Source.Set(func(inv *gpu.Inventory) { inv.Devices = inv.Devices[:1] })
	if _, _, err := n.Containers.Environment(t.Context(), "ns", "a", "main", nil); err == nil || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("a container of a GPU that is gone: %v", err)
	}
}
