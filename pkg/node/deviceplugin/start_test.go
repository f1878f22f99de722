package deviceplugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// demanding returns a pod that accepts no weaker level.
func demanding(p allocation.Pod, level gpu.Enforcement) allocation.Pod {
	p.Request.Enforcement = level
	return p
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
				c.Ready = func(_ context.Context, level gpu.Enforcement, _ []gpu.Device) error {
					if level != gpu.EnforcementMPS {
						t.Errorf("asked for %q", level)
					}
					return ready
				}
			}, nil, tc.pod)
			n.Source.Set(func(inv *gpu.Inventory) { inv.Enforcement, inv.MPS = gpu.EnforcementMPS, true })
			if _, err := n.Admit(t, tc.pod); err != nil {
				t.Fatal(err)
			}
			ready = errors.New("the MPS daemon is dead")
			ids := []string{"aaaaaaaa-0", "aaaaaaaa-1"}
			wantStatus(t, n.Start(t.Context(), ids...), codes.FailedPrecondition, tc.want)
		})
	}
}

// TestNoContainerOfAnUnknownPodStartsWithoutItsLimit covers calls for which the plugin does not know the pod:
// the kubelet does not list init containers, and the kubelet or the API server may not answer. A restarted
// plugin also has no recorded level.
func TestNoContainerOfAnUnknownPodStartsWithoutItsLimit(t *testing.T) {
	prepare := container("prepare", placement.Init, 2)
	dead := errors.New("the MPS daemon is dead")
	for name, tc := range map[string]struct {
		pod    allocation.Pod
		level  gpu.Enforcement
		again  bool // the plugin restarts between the allocation and the start
		change func(*node)
		start  int // units of the container that starts
		want   string
	}{
		"an init container":                      {pod("a", 1, uuidA, prepare, app(3)), gpu.EnforcementMPS, true, nil, 2, "the init container waits: the MPS daemon is dead"},
		"an init container, and no promise":      {pod("a", 1, uuidA, prepare, app(3)), gpu.EnforcementAdvisory, true, nil, 2, ""},
		"the kubelet does not answer":            {pod("a", 1, uuidA, app(3)), gpu.EnforcementMPS, false, func(n *node) { n.Kubelet.Fail = errors.New("no answer") }, 3, "the container waits: the MPS daemon is dead"},
		"nor did it before":                      {pod("a", 1, uuidA, app(3)), gpu.EnforcementMPS, true, func(n *node) { n.Kubelet.Fail = errors.New("no answer") }, 3, "the container waits: the MPS daemon is dead"},
		"the API server has not told of the pod": {pod("a", 1, uuidA, app(3)), gpu.EnforcementMPS, false, func(n *node) { n.Pods.Set() }, 3, "the container waits: the MPS daemon is dead"},
	} {
		t.Run(name, func(t *testing.T) {
			var ready error
			change := func(c *Config) {
				c.Ready = func(_ context.Context, level gpu.Enforcement, _ []gpu.Device) error {
					if level == gpu.EnforcementAdvisory || level == "" {
						return nil
					}
					return ready
				}
			}
			n := newNode(t, change, nil, tc.pod)
			n.LevelIs(tc.level)
			if _, err := n.Admit(t, tc.pod); err != nil {
				t.Fatal(err)
			}
			if err := n.Reconciler.Pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			ids := n.Kubelet.SlotsOf("a")[:tc.start]
			if tc.again {
				n.begin(t, change)
			}
			if tc.change != nil {
				tc.change(n)
			}
			ready = dead
			err := n.Start(t.Context(), ids...)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantStatus(t, err, codes.FailedPrecondition, tc.want)
		})
	}
}

func TestAPodThatDemandsALevel(t *testing.T) {
	p := demanding(pod("a", 1, uuidA, app(3)), gpu.EnforcementMPS)
	n := newNode(t, nil, nil, p)
	_, err := n.Admit(t, p)
	wantStatus(t, err, codes.FailedPrecondition, "pod ns/a wants enforcement mps; this node has advisory")

	n.LevelIs(gpu.EnforcementKernel)
	if _, err := n.Admit(t, p); err != nil {
		t.Errorf("a stronger level does not do: %v", err)
	}
}

// TestTheLevelIsWrittenBeforeTheProgramRuns covers a node that had a stronger level at the pod's Binding.
func TestTheLevelIsWrittenBeforeTheProgramRuns(t *testing.T) {
	p := pod("a", 1, uuidA, app(3))
	p.Assignment.Enforcement = gpu.EnforcementKernel
	n := newNode(t, nil, nil, p)
	n.LevelIs(gpu.EnforcementMPS)
	if _, err := n.Admit(t, p); err != nil {
		t.Fatal(err)
	}
	if got := n.AssignedLevel("a"); got != gpu.EnforcementMPS {
		t.Errorf("level %q is written, and the container was given mps", got)
	}
}

// TestEachContainerWaitsForItsOwnLevel changes the node's level between the allocations of a pod's two
// containers. The pod has the weaker level, but the first container needs the stronger level.
func TestEachContainerWaitsForItsOwnLevel(t *testing.T) {
	p := pod("a", 1, uuidA, container("one", placement.App, 3), container("two", placement.App, 2))
	dead := errors.New("the MPS daemon is dead")
	n := newNode(t, func(c *Config) {
		c.Ready = func(_ context.Context, level gpu.Enforcement, _ []gpu.Device) error {
			return map[gpu.Enforcement]error{gpu.EnforcementMPS: dead}[level]
		}
	}, nil, p)
	if _, err := n.Admit(t, p); err != nil {
		t.Fatal(err)
	}
	ids := n.Kubelet.SlotsOf("a")
	n.State.Put(grants.Grant{Slots: convert[gpu.SlotID](ids[:3]), Level: gpu.EnforcementMPS})
	wantStatus(t, n.Start(t.Context(), ids[:3]...), codes.FailedPrecondition, "container one of pod ns/a waits: the MPS daemon is dead")
	if err := n.Start(t.Context(), ids[3:]...); err != nil {
		t.Errorf("the other waits too: %v", err)
	}
}

func TestNoContainerStartsWithoutItsLimit(t *testing.T) {
	dead := errors.New("the MPS daemon is dead")
	var ready error
	var asked []gpu.Enforcement
	p := pod("a", 1, uuidA, app(3))
	change := func(c *Config) {
		c.Ready = func(_ context.Context, level gpu.Enforcement, _ []gpu.Device) error {
			asked = append(asked, level)
			return ready
		}
	}
	n := newNode(t, change, nil, p)
	n.LevelIs(gpu.EnforcementMPS)
	if _, err := n.Admit(t, p); err != nil {
		t.Fatal(err)
	}
	ids := n.Kubelet.SlotsOf("a")
	ready = dead
	wantStatus(t, n.Start(t.Context(), ids...), codes.FailedPrecondition, "container main of pod ns/a waits: the MPS daemon is dead")
	if want := "ns/a GPUMemoryNotEnforced"; !slices.Contains(n.Notes.All(), want) {
		t.Errorf("events %v, want %s", n.Notes.All(), want)
	}
	ready = nil
	if err := n.Start(t.Context(), ids...); err != nil {
		t.Errorf("it is back, and the container does not start: %v", err)
	}

	// A plugin that has just started uses the annotation.
	if err := n.Reconciler.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.begin(t, change)
	ready = dead
	wantStatus(t, n.Start(t.Context(), ids...), codes.FailedPrecondition, "the MPS daemon is dead")
	if diff := cmp.Diff(slices.Repeat([]gpu.Enforcement{gpu.EnforcementMPS}, 4), asked); diff != "" {
		t.Errorf("levels asked for (-want +got):\n%s", diff)
	}
}

// A container that version 0.2 made a client of MPS protocol 3 does not restart: the protocol's namespace is
// gone, and the container would run without a limit.
func TestNoClientOfARetiredProtocolStarts(t *testing.T) {
	p := pod("a", 1, uuidA, app(3))
	n := newNode(t, nil, nil, p)
	if _, err := n.Admit(t, p); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	former := filepath.Join(dir, "levels.json")
	levels := `{"aaaaaaaa-0":{"level":"mps","mps":3},"aaaaaaaa-1":{"level":"mps","mps":3},"aaaaaaaa-2":{"level":"mps","mps":3}}`
	if err := os.WriteFile(former, []byte(levels), 0o600); err != nil {
		t.Fatal(err)
	}
	n.begin(t, func(c *Config) { c.Record, c.Former = checkpoint.File(filepath.Join(dir, "grants.json")), former })
	wantStatus(t, n.Start(t.Context(), n.Kubelet.SlotsOf("a")...), codes.FailedPrecondition, "protocol 3, which gpumem no longer runs: delete its pod")
}

func TestHolderOf(t *testing.T) {
	held := []allocation.Allocated{
		{Namespace: "ns", Name: "p", Container: "a", Slots: []gpu.SlotID{"aaaa0000-c0", "aaaa0000-0", "aaaa0000-1"}},
		{Namespace: "ns", Name: "p", Container: "b", Slots: []gpu.SlotID{"aaaa0000-2"}},
	}
	if got, ok := findAllocated(held, []gpu.SlotID{"aaaa0000-1", "aaaa0000-0"}); !ok || got.Container != "a" {
		t.Errorf("holderOf = %v, %t, want container a", got, ok)
	}
	for _, other := range [][]gpu.SlotID{{"aaaa0000-0"}, {"aaaa0000-0", "aaaa0000-1", "aaaa0000-2"}, nil} {
		if got, ok := findAllocated(held, other); ok {
			t.Errorf("holderOf(%v) = %v, want none", other, got)
		}
	}
}
