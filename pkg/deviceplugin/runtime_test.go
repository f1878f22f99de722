package deviceplugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

func TestEnvironmentOfAVeryContainer(t *testing.T) {
	p := pod("a", 1, uuidB, container("one", placement.App, 3), container("two", placement.App, 1))
	n := newNode(t, nil, nil, p)
	n.levelIs(gpu.EnforcementMPS)
	if _, err := n.admit(t, p); err != nil {
		t.Fatal(err)
	}
	n.levelIs(gpu.EnforcementAdvisory) // of the node, since; the container has what it was given
	for name, limit := range map[string]string{"one": "3072", "two": "1024"} {
		env, ok, err := n.Environment(t.Context(), "ns", "a", name)
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
	if _, ok, err := n.Environment(t.Context(), "ns", "a", "prepare"); ok || err != nil {
		t.Errorf("a container of which the kubelet does not tell: %t, %v", ok, err)
	}
	n.kubelet.fail = errors.New("no answer")
	if _, _, err := n.Environment(t.Context(), "ns", "a", "one"); err == nil {
		t.Error("the kubelet does not answer, and the container is made")
	}
}

func TestTheKernelsLimitHoldsOrTheContainerDoesNotStart(t *testing.T) {
	p := pod("a", 1, uuidB, app(3))
	var asked []string
	var refuses error
	n := newNode(t, func(c *Config) {
		c.Hold = func(group string, devices []gpu.Device, limitMiB int64) error {
			asked = append(asked, fmt.Sprint(group, " ", devices[0].UUID, " ", limitMiB))
			return refuses
		}
	}, nil, p)
	if _, err := n.admit(t, p); err != nil {
		t.Fatal(err)
	}
	hold := func() error { return n.Hold(t.Context(), "ns", "a", "main", "/kubepods/poda/c1") }
	if err := hold(); err != nil || len(asked) != 0 {
		t.Errorf("advisory: asked %v, %v", asked, err)
	}
	n.levels.handOut(n.kubelet.held[0].Slots, gpu.EnforcementKernel)
	if err := hold(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"/kubepods/poda/c1 " + string(uuidB) + " 3072"}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	refuses = errors.New("no space left")
	if err := hold(); err == nil || !strings.Contains(err.Error(), "its limit of GPU memory does not hold: no space left") {
		t.Errorf("error %v", err)
	}
	if want := "ns/a GPUMemoryNotEnforced"; !slices.Contains(n.notes.all(), want) {
		t.Errorf("events %v, want %s", n.notes.all(), want)
	}
	if err := n.Hold(t.Context(), "ns", "a", "main", "a:b:c"); err == nil {
		t.Error("a control group that cannot be read was taken")
	}
}
