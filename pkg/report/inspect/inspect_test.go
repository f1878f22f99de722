package inspect_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// Builders for the test tables.
var (
	device, sick, cordoned, inventory, node = placementtest.Device, placementtest.Sick, placementtest.Cordoned, placementtest.Inventory, placementtest.Node
	hold, ask, cores, count                 = placementtest.Hold, placementtest.Ask, placementtest.Cores, placementtest.Count
)

func named(name string, n placement.Node) placement.Node {
	n.Name = name
	return n
}

// Node results sort best first, and each result describes its obstacle.
func TestChances(t *testing.T) {
	req := ask(8)
	free := inventory(device(0, 16))
	full := hold("ml/other", ask(12), 0)
	nodes := []placement.Node{
		named("good", node(free)),
		named("cordoned", node(free)),
		named("gpu-cordoned", node(inventory(device(0, 16, cordoned), device(1, 16, cordoned)))),
		named("sick-or-cordoned", node(inventory(device(0, 16, sick), device(1, 4), device(2, 16, cordoned)), hold("ml/a", ask(2), 1))),
		named("little", node(free, full)),
		named("overdrawn", node(inventory(device(0, 16, sick), device(1, 10)), hold("ml/b", ask(4), 0))),
		named("not-overdrawn", node(inventory(device(0, 16, sick), device(1, 12)), hold("ml/c", ask(4), 0))),
		named("drawn-by-cordoned", node(inventory(device(0, 16, cordoned), device(1, 8)), hold("ml/d", ask(4), 0))),
		named("less", node(free, hold("ml/more", ask(14), 0))),
		named("small", node(inventory(device(0, 4)))),
		named("little-and-cordoned", node(free, full)),
		named("tainted", node(free)),
		named("elsewhere", node(free)),
	}
	off := &decide.Refusal{Message: inspect.NodeCordoned}
	facts := inspect.Facts{Nodes: map[string]inspect.NodeFacts{"cordoned": {Refuses: off}, "little-and-cordoned": {Refuses: off}}}
	pod := inspect.WaitFacts{
		Pod: placement.PodRef{Namespace: "ml", Name: "waits", UID: "1"}, Request: req,
		ExcludedNodes: map[string]*decide.Refusal{
			"tainted":   {Message: "the pod does not tolerate taint x"},
			"elsewhere": {Message: "the pod's nodeSelector or affinity excludes the node", Unresolvable: true},
		},
	}
	var chances []inspect.NodeResult
	for _, n := range nodes {
		chances = append(chances, facts.EvaluateNode(pod, n))
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(chances), func(i, j int) { chances[i], chances[j] = chances[j], chances[i] })
	slices.SortFunc(chances, inspect.NodeResult.Compare)
	type chance struct {
		Node, Why string
		Good      bool
	}
	var got []chance
	for _, c := range chances {
		got = append(got, chance{c.Node.Name, c.Explain(), c.IsPlaceable()})
	}
	want := []chance{
		{"good", "needs 8 GiB on one GPU; fits", true},
		{"not-overdrawn", "needs 8 GiB on one GPU; fits", true},
		{"drawn-by-cordoned", "needs 8 GiB on one GPU; fits", true},
		{"cordoned", "the node is cordoned", false},
		{"overdrawn", "kube-scheduler counts 4 GiB of pods on GPU0 (out of use) against the node's other GPUs: kubectl inspect gpumem drain overdrawn 0", false},
		{"sick-or-cordoned", "would fit, but GPU0 is unhealthy (XID 79); GPU2 is cordoned: kubectl inspect gpumem uncordon sick-or-cordoned 2", false},
		{"gpu-cordoned", "would fit, but GPU0, GPU1 are cordoned: kubectl inspect gpumem uncordon gpu-cordoned GPU", false},
		{"little", "needs 8 GiB on one GPU; free: GPU0 4 (4 GiB in all)", false},
		{"less", "needs 8 GiB on one GPU; free: GPU0 2 (2 GiB in all)", false},
		{"small", "needs 8 GiB on one GPU; the largest that qualifies here has 4 GiB: ask for less", false},
		{"little-and-cordoned", "needs 8 GiB on one GPU; free: GPU0 4 (4 GiB in all); the node is cordoned", false},
		{"tainted", "the pod does not tolerate taint x", false},
		{"elsewhere", "the pod's nodeSelector or affinity excludes the node", false},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// kube-scheduler compares only a node's sums. Allocated memory beyond the amount that a GPU offers to the
// kubelet reduces the sum for the other GPUs.
func TestOverdraws(t *testing.T) {
	const against = " against the node's other GPUs: kubectl inspect gpumem drain n "
	shrunk := []placement.Holding{hold("ml/big", ask(14, cores(60)), 0)}
	for name, tc := range map[string]struct {
		req  placement.Request
		node placement.Node
		want string
	}{
		"over-committed, and enough is left":     {ask(6), node(inventory(device(0, 10), device(1, 10)), shrunk...), ""},
		"over-committed":                         {ask(7), node(inventory(device(0, 10), device(1, 10)), shrunk...), "kube-scheduler counts 4 GiB of pods on GPU0 (over-committed)" + against + "0"},
		"gone with its cores":                    {ask(7, cores(50)), node(inventory(device(0, 16, sick), device(1, 30)), shrunk...), "kube-scheduler counts 60 per cent of cores of pods on GPU0 (out of use)" + against + "0"},
		"cores that nobody wants":                {ask(7), node(inventory(device(0, 16, sick), device(1, 30)), shrunk...), ""},
		"neither enough memory nor cores":        {ask(7, cores(50)), node(inventory(device(0, 16, sick), device(1, 20)), shrunk...), "kube-scheduler counts 14 GiB and 60 per cent of cores of pods on GPU0 (out of use)" + against + "0"},
		"one of each":                            {ask(7), node(inventory(device(0, 10), device(1, 4, sick), device(2, 14)), append(shrunk, hold("ml/b", ask(4), 1))...), "kube-scheduler counts 8 GiB of pods on GPU0 (over-committed), GPU1 (out of use)" + against + "1"},
		"all is as it should be, and too little": {ask(7), node(inventory(device(0, 16)), shrunk...), ""},
	} {
		got := ""
		if refusal := inspect.OverdrawnRefusal(tc.req, tc.node); refusal != nil {
			got = refusal.Message
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// For a node with nominated pods, OverdrawnRefusal counts the nominated pods and ignores terminating pods.
func TestOverdrawsCountsNominatedPods(t *testing.T) {
	ends := placementtest.Terminating(hold("ml/ends", ask(9), 1))
	for name, tc := range map[string]struct {
		holdings []placement.Holding
		want     map[gpu.Units]bool
	}{
		"nobody ends for it": {nil, map[gpu.Units]bool{6: true, 7: false}},
		"who ends goes":      {[]placement.Holding{ends}, map[gpu.Units]bool{6: true, 7: false}},
	} {
		books := cache.New()
		books.SetNode("n", inventory(device(0, 10), device(1, 10), device(2, 10)))
		for _, h := range append(tc.holdings, hold("ml/big", ask(14), 0)) {
			books.AddPod("n", h)
		}
		books.NominatePod("n", placement.PodRef{Namespace: "ml", Name: "vip", UID: "vip"}, ask(10), placement.Assignment{Shares: []placement.Share{{Device: placementtest.UUID(1), Units: 10}}}, time.Time{})
		n, _ := books.Node("n")
		for units, want := range tc.want {
			c := inspect.Facts{}.EvaluateNode(inspect.WaitFacts{Request: ask(units)}, n)
			if c.IsPlaceable() != want {
				t.Errorf("%s: %d: %t, want %t: %s", name, units, c.IsPlaceable(), want, c.Explain())
			}
		}
	}
}

// A waiting pod's reason names an unhealthy or cordoned GPU only if the pod would otherwise fit this GPU.
func TestOutOfUseIsSaidWhereItMatters(t *testing.T) {
	for name, tc := range map[string]struct {
		req  placement.Request
		node placement.Node
		want []int
	}{
		"it would fit":              {ask(8), node(inventory(device(0, 16, sick))), []int{0}},
		"it is too small":           {ask(20), node(inventory(device(0, 16, sick))), nil},
		"it is full":                {ask(8), node(inventory(device(0, 16, sick)), hold("ml/a", ask(12), 0)), nil},
		"another does":              {ask(8), node(inventory(device(0, 16, sick), device(1, 16))), nil},
		"one more would fit":        {ask(8, count(2)), node(inventory(device(0, 16, sick), device(1, 16))), []int{0}},
		"two more would be too few": {ask(12, count(4)), node(inventory(device(0, 16, sick), device(1, 16, sick), device(2, 16))), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []int
			for _, d := range (inspect.Facts{}).EvaluateNode(inspect.WaitFacts{Request: tc.req}, tc.node).OutOfUse {
				got = append(got, d.Index)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Memory that is reserved for a nominated pod is not free for other pods of its priority, but is free
// for the pod itself.
func TestChancesOfNominatedPods(t *testing.T) {
	books := cache.New()
	books.SetNode("n", inventory(device(0, 16)))
	nominated := placement.PodRef{Namespace: "ml", Name: "nominated", UID: "1"}
	books.NominatePod("n", nominated, ask(12), placement.Assignment{}, time.Time{})
	offered, _ := books.Node("n")
	for uid, want := range map[string]bool{"1": true, "2": false} {
		c := inspect.Facts{}.EvaluateNode(inspect.WaitFacts{Pod: placement.PodRef{UID: uid}, Request: ask(12)}, offered)
		if c.IsPlaceable() != want {
			t.Errorf("pod %s: %t, want %t: %s", uid, c.IsPlaceable(), want, c.Explain())
		}
	}
}

func TestLargestFreeIsWhatAPodCanGet(t *testing.T) {
	nodes := []placement.Node{named("closed", node(inventory(device(0, 16)))), named("open", node(inventory(device(0, 8)), hold("ml/a", ask(3), 0)))}
	nodes = append(nodes, named("overdrawn", node(inventory(device(0, 10), device(1, 10)), hold("ml/b", ask(14), 0))))
	facts := inspect.Facts{Nodes: map[string]inspect.NodeFacts{"closed": {Refuses: &decide.Refusal{Message: inspect.NodeCordoned}}}}
	got := make(map[string]gpu.Units)
	for _, n := range inspect.New(nodes, facts).Nodes {
		got[n.Name] = n.LargestFree.Units
	}
	if diff := cmp.Diff(map[string]gpu.Units{"closed": 0, "open": 5, "overdrawn": 6}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUnserved(t *testing.T) {
	for name, tc := range map[string]struct {
		facts      inspect.WaitFacts
		schedulers []string
		want       string
	}{
		"ours, and seen":    {inspect.WaitFacts{Scheduler: "gpumem"}, []string{"gpumem"}, ""},
		"not known whose":   {inspect.WaitFacts{Scheduler: "default-scheduler"}, nil, ""},
		"gated":             {inspect.WaitFacts{Gated: true, NotConsidered: true, Scheduler: "other"}, []string{"gpumem"}, "it has scheduling gates: no scheduler considers it before they are removed"},
		"ours, not running": {inspect.WaitFacts{Scheduler: "gpumem", NotConsidered: true}, []string{"gpumem"}, `no scheduler has considered it yet: does its scheduler, "gpumem", run?`},
		"none of that name": {inspect.WaitFacts{Scheduler: "volcano", NotConsidered: true}, []string{"gpumem"}, `its schedulerName is "volcano", and no scheduler has considered it: does a scheduler of this name run? gpumem's scheduler is gpumem`},
		"misspelt":          {inspect.WaitFacts{Scheduler: "gpumen", NotConsidered: true}, []string{"gpumem"}, `its schedulerName is "gpumen", and no scheduler has considered it: did you mean gpumem?`},
		"misspelt, and not known whose": {
			inspect.WaitFacts{Scheduler: "gpumem-schedular", NotConsidered: true}, nil, `its schedulerName is "gpumem-schedular", and no scheduler has considered it: did you mean gpumem-scheduler?`,
		},
		"the cluster's own": {inspect.WaitFacts{Scheduler: "default-scheduler"}, []string{"a", "b"}, `its schedulerName is "default-scheduler", a scheduler that does not ask gpumem; gpumem's scheduler is a or b`},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.facts.Unserved(tc.schedulers)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A report names, for each waiting pod, a node that it fits or the closest node.
func TestWaiting(t *testing.T) {
	nodes := []placement.Node{named("a", node(inventory(device(0, 8)))), named("b", node(inventory(device(0, 16)))), named("cpu", placement.Node{})}
	wait := func(name string, req placement.Request) inspect.WaitFacts {
		return inspect.WaitFacts{Pod: placement.PodRef{Namespace: "ml", Name: name, UID: name}, Request: req}
	}
	broken := wait("broken", placement.Request{})
	broken.Problem = "cannot be read"
	got := func(nodes []placement.Node, facts inspect.Facts) map[string]string {
		out := make(map[string]string)
		for _, w := range inspect.New(nodes, facts).Waiting {
			out[w.Name] = w.Explain()
		}
		return out
	}
	all := []inspect.WaitFacts{wait("fits", ask(12)), wait("large", ask(20)), wait("cores", ask(1, cores(50))), broken}
	if diff := cmp.Diff(map[string]string{
		"fits": "its GPU memory fits on b; " + inspect.AskEvents, "large": "b: needs 20 GiB on one GPU; the largest that qualifies here has 16 GiB: ask for less",
		"cores": "its GPU memory fits on a; " + inspect.AskEvents, "broken": "cannot be read",
	}, got(nodes, inspect.Facts{Waiting: all})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{
		"fits": "no node offers GPU memory", "large": "no node offers GPU memory", "cores": "they are off", "broken": "cannot be read",
	}, got(nil, inspect.Facts{Waiting: all, CoresOff: "they are off"})); diff != "" {
		t.Errorf("without nodes (-want +got):\n%s", diff)
	}
}

// The namespace of a problem is its field Namespace, and not a part of the object's name.
func TestProblemsOfANamespace(t *testing.T) {
	mine := []inspect.Problem{{Object: "pods"}, {Object: "pod without a namespace"}, {Object: "pod ml/a", Namespace: "ml"}}
	report := inspect.Report{Problems: append(slices.Clone(mine), inspect.Problem{Object: "pod web/b", Namespace: "web"}, inspect.Problem{Object: "claim ml/c", Namespace: "web"})}
	if diff := cmp.Diff(mine, report.InNamespace("ml").Problems); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
