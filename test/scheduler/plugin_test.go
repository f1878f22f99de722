package scheduler

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/gpumem/gpumem/cmd/gpumem-scheduler/plugin"
	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// evictedFor has the pods of these names gone as soon as they are evicted, and returns who has
// been evicted once the pod is bound. kube-scheduler tries the pod again and again: by what it
// has heard, though the plugin's cache may not have heard it yet.
func (c *cluster) evictedFor(t *testing.T, pod string, of ...string) (gone []string) {
	t.Helper()
	c.eventually(t, *patience, pod+" is bound", func() bool {
		for _, name := range of {
			if p := c.pod(t, name); p != nil && p.DeletionTimestamp != nil {
				c.remove(t, name)
			}
		}
		waiting := c.pod(t, pod)
		c.scheduler.SchedulingQueue.Activate(klog.Background(), map[string]*v1.Pod{pod: waiting})
		return waiting.Spec.NodeName != ""
	})
	for _, name := range of {
		if p := c.pod(t, name); p == nil || p.DeletionTimestamp != nil {
			gone = append(gone, name)
		}
	}
	return gone
}

// Where the sum of a node has room and no GPU has, the plugin has those evicted whose leaving
// costs the least: an unimportant pod before another, and of one priority one pod before
// several.
func TestWhoIsEvictedByGPU(t *testing.T) {
	two := func(t testing.TB) *v1.Node { return node(t, "node") }
	wide := func(t testing.TB) *v1.Node {
		return nodeOf(t, "node", gpu.Device{UUID: uuid("node", 0), Model: model, MemoryMiB: 12 * unitMiB, Allocatable: 12, NUMANode: -1},
			gpu.Device{UUID: uuid("node", 1), Index: 1, Model: model, MemoryMiB: 12 * unitMiB, Allocatable: 12, NUMANode: -1})
	}
	older := func(p *v1.Pod) {
		early := metav1.NewTime(time.Now().Add(-time.Hour))
		p.Status.StartTime = &early
	}
	for _, tc := range []struct {
		name string
		node func(testing.TB) *v1.Node
		pods func(t testing.TB, n *v1.Node) []runtime.Object
		asks gpu.Units
		of   []string
		want []string
		late time.Duration
	}{
		{
			name: "fragmented memory alone", node: two, asks: 8,
			pods: func(t testing.TB, n *v1.Node) []runtime.Object {
				return []runtime.Object{pod(t, "low", 6, on(t, n, 0), priority(1)), pod(t, "mid", 6, on(t, n, 1), priority(500))}
			},
			of: []string{"low", "mid"}, want: []string{"low"},
		},
		{
			name: "one GPU, though the plugin hears late of who has left it", node: two, asks: 8, late: behind,
			pods: func(t testing.TB, n *v1.Node) []runtime.Object {
				return []runtime.Object{pod(t, "low", 6, on(t, n, 0), priority(1)), pod(t, "mid", 6, on(t, n, 1), priority(500))}
			},
			of: []string{"low", "mid"}, want: []string{"low"},
		},
		{
			name: "one old pod before four young ones", node: wide, asks: 12,
			pods: func(t testing.TB, n *v1.Node) []runtime.Object {
				return []runtime.Object{
					pod(t, "big", 12, on(t, n, 0), older),
					pod(t, "a", 3, on(t, n, 1)), pod(t, "b", 3, on(t, n, 1)), pod(t, "c", 3, on(t, n, 1)), pod(t, "d", 3, on(t, n, 1)),
				}
			},
			of: []string{"big", "a", "b", "c", "d"}, want: []string{"big"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := tc.node(t)
			objects := append([]runtime.Object{n}, tc.pods(t, n)...)
			for _, o := range objects[1:] {
				gracefully(o.(*v1.Pod))
			}
			c := start(t, objects, func(c *cluster) { c.late = tc.late; inProcess(c) })
			c.add(t, pod(t, "high", tc.asks, priority(1000)))
			if diff := cmp.Diff(tc.want, c.evictedFor(t, "high", tc.of...)); diff != "" {
				t.Errorf("evicted (-want +got):\n%s", diff)
			}
		})
	}
}

// Of several nodes the one is chosen whose most important victim is the least important, also where
// the victims on one are those that the core has chosen.
func TestOnWhichNodePodsAreEvicted(t *testing.T) {
	a, b := node(t, "a"), node(t, "b")
	started := func(before time.Duration) option {
		return func(p *v1.Pod) { p.Status.StartTime = &metav1.Time{Time: time.Now().Add(-before)} }
	}
	objects := []runtime.Object{a, b,
		pod(t, "a-old", 5, on(t, a, 0), priority(900), started(time.Hour)), pod(t, "a-low", 5, on(t, a, 0), priority(1)),
		pod(t, "a-1", 3, on(t, a, 1), priority(900)), pod(t, "a-2", 3, on(t, a, 1), priority(900)), pod(t, "a-3", 4, on(t, a, 1), priority(900)),
		pod(t, "b-mid", 10, on(t, b, 0), priority(500)), pod(t, "b-high", 10, on(t, b, 1), priority(950)),
	}
	var of []string
	for _, o := range objects[2:] {
		gracefully(o.(*v1.Pod))
		of = append(of, o.(*v1.Pod).Name)
	}
	c := start(t, objects, inProcess)
	c.add(t, pod(t, "high", 10, priority(1000)))
	if diff := cmp.Diff([]string{"b-mid"}, c.evictedFor(t, "high", of...)); diff != "" {
		t.Errorf("evicted (-want +got):\n%s", diff)
	}
}

// No pod gets cores of a GPU without memory of it: such a pod waits, and says why.
func TestCoresAloneWait(t *testing.T) {
	n := node(t, "node")
	n.Status.Allocatable[names(t).GPUCore()] = *resource.NewQuantity(200, resource.DecimalSI)
	c := start(t, []runtime.Object{n}, inProcess)
	c.add(t, pod(t, "cores", 0, func(p *v1.Pod) {
		amount := v1.ResourceList{names(t).GPUCore(): *resource.NewQuantity(10, resource.DecimalSI)}
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: amount, Limits: amount}
	}))
	c.waits(t, "cores")
	if said, want := c.pod(t, "cores").Status.Conditions[0].Message, "gpumem.dev/gpu-core needs gpumem.dev/gpu-mem too"; !strings.Contains(said, want) {
		t.Errorf("it says %q, want %q", said, want)
	}
}

// A configuration in which pods would be bound without a GPU is refused.
func TestConfigurationsThatAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*config.Plugins)
		want   []string
	}{
		{"as the chart has it", func(*config.Plugins) {}, nil},
		{
			"DefaultBinder binds first", func(p *config.Plugins) { p.Bind = config.PluginSet{} },
			[]string{"DefaultBinder comes before GPUMemory at bind"},
		},
		{
			"DefaultPreemption evicts first", func(p *config.Plugins) { p.PostFilter = config.PluginSet{} },
			[]string{"DefaultPreemption comes before GPUMemory at postFilter"},
		},
		{
			"it reserves nothing", func(p *config.Plugins) {
				p.Reserve.Disabled = append(p.Reserve.Disabled, config.Plugin{Name: plugin.Name})
			},
			[]string{"enable GPUMemory at reserve"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, nil, inProcess, func(c *cluster) { tc.change(c.cfg.Profiles[0].Plugins); c.unchecked = true })
			said := ""
			if err := plugin.Check(schedulerName, c.scheduler.Profiles[schedulerName].ListPlugins()); err != nil {
				said = err.Error()
			}
			for _, want := range tc.want {
				if !strings.Contains(said, want) {
					t.Errorf("it says %q, and not %q", said, want)
				}
			}
			if tc.want == nil && said != "" {
				t.Errorf("it is refused: %s", said)
			}
		})
	}
}

// The profile that the chart renders for scheduler.mode=plugin is the one that these tests run
// with, and the plugin takes it: a pod is bound with its GPU.
func TestTheChartsProfile(t *testing.T) {
	c := start(t, []runtime.Object{node(t, "node"), pod(t, "pod", 5)}, inProcess, func(c *cluster) {
		chart := configuration(t, "default")
		if len(chart.Extenders) > 0 {
			t.Errorf("it has extenders: %v", chart.Extenders)
		}
		if diff := cmp.Diff(c.cfg.Profiles, chart.Profiles); diff != "" {
			t.Errorf("the profiles (-these tests' +chart's):\n%s", diff)
		}
		c.cfg.Profiles = chart.Profiles
	})
	c.eventually(t, *patience, "the pod is bound", func() bool { return c.pod(t, "pod").Spec.NodeName == "node" })
	if got := placeOf(t, c.pod(t, "pod")); got.Node != "node" || len(got.GPUs) != 1 {
		t.Errorf("it is on %v, want one GPU of the node", got)
	}
}

// A pod is ranked by what it asks for itself, also right after one that asked for as much, and
// whose node is full since: kube-scheduler goes on with the ranks of that one where both are said
// to ask for the same. It does so where no constraints are added to those of pods.
func TestEachPodIsRankedByWhatItAsksFor(t *testing.T) {
	objects := []runtime.Object{
		pod(t, "a-packs", 8, annotated(names(t).Policy(), "binpack")),
		pod(t, "b-spreads", 8, annotated(names(t).Policy(), "spread")),
	}
	for i, taken := range []gpu.Units{2, 1, 0} {
		n := nodeOf(t, nodeName(i), device(nodeName(i), 0))
		if objects = append(objects, n); taken > 0 {
			objects = append(objects, pod(t, fillerName(n.Name, 0), taken, on(t, n, 0)))
		}
	}
	c := start(t, objects, inProcess, func(c *cluster) {
		for _, of := range c.cfg.Profiles[0].PluginConfig {
			if args, ok := of.Args.(*config.PodTopologySpreadArgs); ok {
				args.DefaultingType = config.ListDefaulting
			}
		}
	})
	for name, want := range map[string]string{"a-packs": nodeName(0), "b-spreads": nodeName(2)} {
		if got := c.bound(t, name, 0); got.Node != want {
			t.Errorf("%s is on %s, want %s", name, got.Node, want)
		}
	}
}
