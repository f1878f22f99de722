package cli_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/zap/zaptest"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/nodefilter"
	"github.com/gpumem/gpumem/pkg/report/page"
	watches "github.com/gpumem/gpumem/pkg/scheduler/controller"
)

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// lineOf returns the line of a table that starts with a word.
func lineOf(table, word string) string {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, word+" ") {
			return strings.TrimSuffix(line, "\n")
		}
	}
	return ""
}

// A pod does not fit a node that excludes it for other reasons, however much GPU memory is free there.
func TestNodesThatAPodCannotGoTo(t *testing.T) {
	names := kubetest.Names(t)
	withhold := func(n *v1.Node) { n.Status.Allocatable[names.GPUMem()] = resource.MustParse("0") }
	cordon := func(n *v1.Node) {
		n.Spec.Unschedulable = true
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
	}
	unready := func(n *v1.Node) {
		n.Status.Conditions[0].Status = v1.ConditionUnknown
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoSchedule}, v1.Taint{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute})
	}
	taint := func(key string, effect v1.TaintEffect) func(*v1.Node) {
		return func(n *v1.Node) { n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: key, Effect: effect}) }
	}
	offerCores := func(n *v1.Node) { n.Status.Allocatable[names.GPUCore()] = resource.MustParse("100") }
	askCores := func(p *v1.Pod) { p.Spec.Containers[0].Resources.Limits[names.GPUCore()] = resource.MustParse("30") }
	selectB := func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"name": "gpu-b"} }
	selectNone := func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"name": "gpu-x"} }
	affineToB := func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
			NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "name", Operator: v1.NodeSelectorOpIn, Values: []string{"gpu-b"}}}}},
		}}}
	}
	tolerate := func(p *v1.Pod) {
		p.Spec.Tolerations = []v1.Toleration{{Key: "nvidia.com/gpu", Operator: v1.TolerationOpExists}}
	}
	none := func(*v1.Pod) {}
	const (
		kept      = "the pod's nodeSelector or affinity excludes the node"
		off       = "no node offers gpumem.dev/gpu-core: cores are off (chart value cores)"
		allowed   = " that its nodeSelector, affinity and tolerations allow"
		noKubelet = "its kubelet offers no gpumem.dev/gpu-mem: see kubectl inspect gpumem doctor"
		full      = "needs 3 GiB on one GPU; free: GPU0 1 (1 GiB in all)"
		none1     = "it fits on none of "
		only1     = "it does not fit on the only node"
	)
	type verdicts map[string]string // verdicts of some nodes, by name
	for name, tc := range map[string]struct {
		a, b    func(*v1.Node) // changes to the nodes; nil for none
		pod     func(*v1.Pod)
		full    bool // gpu-b is full
		explain string
		waits   string // reason in the list of waiting pods; empty: the pod fits on gpu-b
		verdicts
		first string // first node of the table; empty: gpu-b
	}{
		"withheld": {a: withhold, pod: none, explain: "its GPU memory fits on 1 of 2 nodes: ",
			verdicts: verdicts{"gpu-a": "would fit, but the node's kubelet offers no GPU memory", "gpu-b": "fits"}},
		"withheld, and no room elsewhere": {a: withhold, pod: none, full: true, explain: none1 + "2 nodes; gpu-a comes closest: " + noKubelet,
			waits: "gpu-a: " + noKubelet, verdicts: verdicts{"gpu-b": "not enough free"}, first: "gpu-a"},
		"cordoned": {a: cordon, pod: none, explain: "its GPU memory fits on 1 of 2 nodes: ", verdicts: verdicts{"gpu-a": "would fit, but the node is cordoned"}},
		"cordoned, and no room elsewhere": {a: cordon, pod: none, full: true, explain: "gpu-a comes closest: the node is cordoned",
			waits: "gpu-a: the node is cordoned", first: "gpu-a"},
		"not ready": {a: unready, pod: none, explain: "its GPU memory fits on 1 of 2 nodes: ", verdicts: verdicts{"gpu-a": "would fit, but the node is NotReady"}},
		"not ready, and no room elsewhere": {a: unready, pod: none, full: true, explain: "gpu-a comes closest: the node is NotReady",
			waits: "gpu-a: the node is NotReady", first: "gpu-a"},
		"tainted, and no room elsewhere": {a: taint("team", v1.TaintEffectNoSchedule), pod: none, full: true,
			explain: only1 + allowed + "; gpu-b comes closest: " + full + "; gpu-a would fit, but the pod does not tolerate taint team", waits: "gpu-b: " + full + "; gpu-a would fit, but the pod does not tolerate taint team"},
		"tainted and cordoned": {a: func(n *v1.Node) { cordon(n); taint("team", v1.TaintEffectNoSchedule)(n) }, pod: none, full: true,
			explain: only1 + allowed + "; gpu-b comes closest: " + full + "\n", waits: "gpu-b: " + full + "\n"},
		"cores are off": {pod: askCores, explain: "waits: " + off, waits: off,
			verdicts: verdicts{"gpu-a": "would fit, but the node offers no gpumem.dev/gpu-core", "gpu-b": "would fit, but the node offers no gpumem.dev/gpu-core"}, first: "gpu-a"},
		"cores are off, or not to be told": {a: withhold, b: withhold, pod: askCores, explain: none1 + "2 nodes; gpu-a comes closest: " + noKubelet,
			waits: "gpu-a: " + noKubelet, first: "gpu-a"},
		"cores are on somewhere": {b: offerCores, pod: askCores, explain: "its GPU memory fits on 1 of 2 nodes: ",
			verdicts: verdicts{"gpu-a": "would fit, but the node offers no gpumem.dev/gpu-core", "gpu-b": "fits"}},
		"nodeSelector": {pod: selectB, explain: "its GPU memory fits on 1 of 1 node" + allowed, verdicts: verdicts{"gpu-a": "would fit, but " + kept, "gpu-b": "fits"}},
		"nodeSelector, and no room there": {pod: selectB, full: true, explain: only1 + allowed + "; gpu-b comes closest: " + full,
			waits: "gpu-b: " + full, verdicts: verdicts{"gpu-a": "would fit, but " + kept, "gpu-b": "not enough free"}},
		"nodeSelector of no node": {pod: selectNone, full: true, explain: "its nodeSelector, affinity and tolerations allow none of 2 nodes; gpu-a comes closest: " + kept,
			waits: "gpu-a: " + kept, first: "gpu-a"},
		"nodeSelector of a node with a taint": {b: taint("nvidia.com/gpu", v1.TaintEffectNoSchedule), pod: selectB,
			explain: "allow none of 2 nodes; gpu-b comes closest: the pod does not tolerate taint nvidia.com/gpu", waits: "gpu-b: the pod does not tolerate taint nvidia.com/gpu"},
		"affinity":         {pod: affineToB, explain: "its GPU memory fits on 1 of 1 node" + allowed, verdicts: verdicts{"gpu-a": "would fit, but " + kept}},
		"taint":            {a: taint("nvidia.com/gpu", v1.TaintEffectNoSchedule), pod: none, explain: "its GPU memory fits on 1 of 1 node" + allowed, verdicts: verdicts{"gpu-a": "would fit, but the pod does not tolerate taint nvidia.com/gpu"}},
		"not looked at":    {pod: func(p *v1.Pod) { p.Status.Conditions = nil }, explain: "its GPU memory fits on 2 of 2 nodes: ", waits: `its GPU memory fits on gpu-a; no scheduler has considered it yet: does its scheduler, "default-scheduler", run?`, first: "gpu-a"},
		"gated":            {pod: func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "quota"}} }, explain: "its GPU memory fits on 2 of 2 nodes: ", waits: "its GPU memory fits on gpu-a; it has scheduling gates", first: "gpu-a"},
		"taint, tolerated": {a: taint("nvidia.com/gpu", v1.TaintEffectNoExecute), pod: tolerate, explain: "its GPU memory fits on 2 of 2 nodes: ", waits: "its GPU memory fits on gpu-a", first: "gpu-a"},
		"taint, a wish":    {a: taint("x", v1.TaintEffectPreferNoSchedule), pod: none, explain: "its GPU memory fits on 2 of 2 nodes: ", waits: "its GPU memory fits on gpu-a", first: "gpu-a"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), kubetest.Node(t, "gpu-b", kubetest.Inventory("gpu-b", 16))
			for change, node := range map[*func(*v1.Node)]*v1.Node{&tc.a: a, &tc.b: b} {
				if *change != nil {
					(*change)(node)
				}
			}
			objects := []runtime.Object{a, b, kubetest.With(kubetest.Pod(t, "ml/waits", "", 3), tc.pod)}
			if tc.full {
				objects = append(objects, kubetest.Pod(t, "ml/beside", "gpu-b", 15, kubetest.UUID("gpu-b", 0)))
			}
			client := fake.NewClientset(objects...)

			// The web page shows the same reason as the commands.
			stdout, _, err := clirun.Inspect(fake.NewClientset(objects...), "pods", "--waiting", "-o", "wide")
			if reason := pageReason(t, objects, "ml", "waits"); err != nil || !strings.HasSuffix(lineOf(stdout, "ml"), "  "+reason) {
				t.Errorf("error %v, the page says of the pod\n%s\nand the list of pods\n%s", err, reason, stdout)
			}

			explained, _, err := clirun.Inspect(client, "explain", "ml/waits")
			if err != nil || !strings.Contains(explained, tc.explain) {
				t.Errorf("explain: error %v, want %q in:\n%s", err, tc.explain, explained)
			}
			_, table, _ := strings.Cut(explained, "VERDICT\n")
			if first := orElse(tc.first, "gpu-b"); !strings.HasPrefix(table, first) {
				t.Errorf("want %s first in:\n%s", first, table)
			}
			for node, want := range tc.verdicts {
				if !strings.Contains(table, node) || !strings.HasSuffix(lineOf(table, node), "  "+want) {
					t.Errorf("of %s, want %q in:\n%s", node, want, table)
				}
			}
			for _, args := range [][]string{{"-d"}, {"pods", "--waiting", "-o", "wide"}} {
				stdout, _, err := clirun.Inspect(client, args...)
				if want := "  " + orElse(tc.waits, "its GPU memory fits on gpu-b"); err != nil || !strings.Contains(stdout, want) {
					t.Errorf("%v: error %v, want %q in:\n%s", args, err, want, stdout)
				}
			}
		})
	}
}

// pageReason returns the reason that the web page shows for a waiting pod. Parameter objects is the content of the
// scheduler's watch.
func pageReason(t *testing.T, objects []runtime.Object, namespace, name string) (reason string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		books := cache.New()
		watch, err := watches.New(zaptest.NewLogger(t), fake.NewClientset(objects...), kubetest.Names(t), books)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); watch.Run(ctx) }()
		synctest.Wait()
		fleet := page.NewFleet(page.Source{Nodes: books.Nodes, Missing: watch.Missing, Used: func() map[gpu.UUID]int64 { return nil }, Facts: func(nodes []placement.Node) inspect.Facts {
			return nodefilter.Facts(kubetest.Names(t), nodes, watch.Node, watch.Waiting())
		}})
		for _, w := range fleet.Waiting {
			if w.Namespace == namespace && w.Name == name {
				reason = w.Reason
			}
		}
		cancel()
		<-done
	})
	return reason
}

// No new pod can use the memory of a node that is NotReady, and the state of its pods may be out of date.
func TestANodeThatIsNotReady(t *testing.T) {
	a := kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16))
	a.Status.Conditions[0].Status = v1.ConditionUnknown
	there := kubetest.With(kubetest.Pod(t, "ml/there", "gpu-a", 3, kubetest.UUID("gpu-a", 0)), func(p *v1.Pod) { p.Status.Phase = v1.PodRunning })
	team := kubetest.Node(t, "gpu-team", kubetest.Inventory("gpu-team", 16))
	team.Spec.Taints = []v1.Taint{{Key: "team", Effect: v1.TaintEffectNoSchedule}}
	client := fake.NewClientset(a, there, team)
	for want, args := range map[string][]string{
		"State:     its node is NotReady, and the pod's state may be out of date: kubectl describe node gpu-a shows the reason": {"explain", "ml/there"},
		"gpu-a     0      the node is NotReady":      {"fit", "--mem", "4"},
		"Healthy; the node is NotReady":              {"gpus", "gpu-a"},
		"Healthy; for pods that tolerate taint team": {"gpus", "gpu-team"},
	} {
		if stdout, _, _ := clirun.Inspect(client, args...); !strings.Contains(stdout, want) {
			t.Errorf("%v: want %q in:\n%s", args, want, stdout)
		}
	}
}

// If an unusable GPU is the only obstacle on its node, commands show it as the reason why a pod waits, even
// if other nodes are full.
func TestGPUsThatAreOutOfUse(t *testing.T) {
	out := func(s gpu.Status, indexes ...int) func([]gpu.Device) {
		return func(devices []gpu.Device) {
			for _, i := range indexes {
				devices[i].Status = s
			}
		}
	}
	const full = "gpu-a: needs 9 GiB on one GPU; free: GPU0 1, GPU1 8 (9 in all, fragmented)"
	for name, tc := range map[string]struct {
		gpus     []int // sizes of gpu-b's GPUs in GiB
		out      []func([]gpu.Device)
		units    int64
		count    string
		node     func(*v1.Node)
		want     string // closest node and reason
		verdicts []string
	}{
		"the plugin is stopped": {gpus: []int{80}, out: []func([]gpu.Device){out(gpu.Status{Stopped: true}, 0)}, units: 9,
			want:     "gpu-b: would fit, but GPU0 is unhealthy (its device plugin is stopped or being replaced)",
			verdicts: []string{"takes no new pods: its device plugin is stopped or being replaced"}},
		"cordoned": {gpus: []int{80}, out: []func([]gpu.Device){out(gpu.Status{Cordoned: true}, 0)}, units: 9,
			want: "gpu-b: would fit, but GPU0 is cordoned: kubectl inspect gpumem uncordon gpu-b 0", verdicts: []string{"cordoned"}},
		"of both kinds, beside one that is too small": {gpus: []int{80, 80, 80, 4}, units: 9,
			out:      []func([]gpu.Device){out(gpu.Status{Cordoned: true}, 0, 2, 3), out(gpu.Unhealthy("XID 79"), 1)},
			want:     "gpu-b: would fit, but GPU0, GPU2 are cordoned: kubectl inspect gpumem uncordon gpu-b GPU; GPU1 is unhealthy (XID 79)",
			verdicts: []string{"cordoned", "unhealthy: XID 79", "cordoned", "too small even when empty"}},
		"one of two that are wanted": {gpus: []int{80, 80}, out: []func([]gpu.Device){out(gpu.Unhealthy(""), 1)}, units: 18, count: "2",
			want: "gpu-b: would fit, but GPU1 is unhealthy (no reason given)", verdicts: []string{"would fit, but too few GPUs of the node do", "unhealthy: no reason given"}},
		"the node is cordoned too": {gpus: []int{80}, out: []func([]gpu.Device){out(gpu.Unhealthy("XID 79"), 0)}, units: 9, node: func(n *v1.Node) { n.Spec.Unschedulable = true },
			want: "gpu-b: would fit, but GPU0 is unhealthy (XID 79); the node is cordoned", verdicts: []string{"unhealthy: XID 79"}},
		"too small in any case": {gpus: []int{8}, out: []func([]gpu.Device){out(gpu.Unhealthy("XID 79"), 0)}, units: 9, want: full, verdicts: []string{"too small even when empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			inv := kubetest.Inventory("gpu-b", tc.gpus...)
			for _, change := range tc.out {
				change(inv.Devices)
			}
			b := kubetest.Node(t, "gpu-b", inv)
			if tc.node != nil {
				tc.node(b)
			}
			client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 16)), b,
				kubetest.Pod(t, "ml/x", "gpu-a", 15, kubetest.UUID("gpu-a", 0)), kubetest.Pod(t, "ml/y", "gpu-a", 8, kubetest.UUID("gpu-a", 1)),
				kubetest.With(kubetest.Pod(t, "ml/waits", "", tc.units), func(p *v1.Pod) {
					if tc.count != "" {
						p.Annotations[kubetest.Names(t).Count()] = tc.count
					}
				}))
			explained, _, err := clirun.Inspect(client, "explain", "ml/waits")
			if want := strings.Replace(tc.want, ": ", " comes closest: ", 1) + "\n"; err != nil || !strings.Contains(explained, want) {
				t.Errorf("explain: error %v, want %q in:\n%s", err, want, explained)
			}
			for i, want := range tc.verdicts {
				if line := lineOf(explained, fmt.Sprintf("gpu-b  %d   ", i)); !strings.HasSuffix(line, "  "+want) {
					t.Errorf("of GPU %d, want %q in:\n%s", i, want, explained)
				}
			}
			for _, args := range [][]string{{"-d"}, {"pods", "--waiting", "-o", "wide"}} {
				if stdout, _, err := clirun.Inspect(client, args...); err != nil || !strings.Contains(stdout, "  "+tc.want+"\n") {
					t.Errorf("%v: error %v, want %q in:\n%s", args, err, tc.want, stdout)
				}
			}
		})
	}
}
