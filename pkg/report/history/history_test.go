package history

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
)

func ref(name string) placement.PodRef {
	return placement.PodRef{Namespace: "team", Name: name, UID: "uid-" + name}
}

func at(second int64) time.Time { return time.Unix(second, 0).UTC() }

func TestLogKeepsTheLastOfEachVerb(t *testing.T) {
	l := NewLog(10)
	l.Add(ref("a"), Decision{Time: at(1), Verb: Filter, Result: Unfit})
	l.Add(ref("a"), Decision{Time: at(2), Verb: Preempt, Result: Unfit})
	l.Add(ref("a"), Decision{Time: at(3), Verb: Filter, Result: Fits})
	l.Add(ref("a"), Decision{Time: at(4), Verb: Bind, Result: Bound})
	want := []Pod{{Namespace: "team", Name: "a", UID: "uid-a", Tries: 2, First: at(1), Decisions: []Decision{
		{Time: at(4), Verb: Bind, Result: Bound},
		{Time: at(3), Verb: Filter, Result: Fits},
		{Time: at(2), Verb: Preempt, Result: Unfit},
	}}}
	if diff := cmp.Diff(want, l.Pods("", "")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// If kube-scheduler itself has rejected all nodes, it calls only preempt.
func TestATryMayBeAboutEvictionsAlone(t *testing.T) {
	for _, tc := range []struct {
		verbs []string
		want  int
	}{
		{[]string{Filter, Prioritize, Bind}, 1},
		{[]string{Filter, Preempt, Filter, Bind}, 2},
		{[]string{Preempt, Filter, Bind}, 2},
		{[]string{Preempt, Preempt}, 2},
		{[]string{Filter, Filter, Preempt}, 2},
	} {
		l := NewLog(1)
		for _, verb := range tc.verbs {
			l.Add(ref("a"), Decision{Verb: verb})
		}
		if got := l.Pods("", "")[0].Tries; got != tc.want {
			t.Errorf("%v: %d tries, want %d", tc.verbs, got, tc.want)
		}
	}
}

func TestLogIsBounded(t *testing.T) {
	l := NewLog(3)
	for i := range 1000 {
		l.Add(ref(fmt.Sprint(i)), Decision{Verb: Filter})
		l.Add(ref("0"), Decision{Verb: Filter})
	}
	var names []string
	for _, pod := range l.Pods("", "") {
		names = append(names, pod.Name)
	}
	if diff := cmp.Diff([]string{"0", "999", "998"}, names); diff != "" || len(l.pods) != 3 {
		t.Errorf("%d known (-want +got):\n%s", len(l.pods), diff)
	}
	none := NewLog(0)
	none.Add(ref("a"), Decision{})
	if got := none.Pods("", ""); len(got) > 0 {
		t.Errorf("a log of nothing has %v", got)
	}
}

func TestLogIsRead(t *testing.T) {
	l := NewLog(10)
	l.Add(ref("a"), Decision{Verb: Filter, Result: Fits})
	l.Add(ref("b"), Decision{Verb: Filter, Result: Unfit, Nodes: []Node{{Name: "n", GPUs: []GPU{{UUID: "GPU-a", Reason: "Occupied"}}}}})
	for path, want := range map[string][]Pod{
		Path:                            l.Pods("", ""),
		Path + "?namespace=team&pod=b":  l.Pods("team", "b"),
		Path + "?namespace=other&pod=b": {},
	} {
		recorder := httptest.NewRecorder()
		l.ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
		var got List
		if err := json.Unmarshal(recorder.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.Pods); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

func TestLogIsUsedByManyAtOnce(t *testing.T) {
	l := NewLog(5)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				l.Add(ref(fmt.Sprint(i, j%7)), Decision{Verb: Filter})
				_ = l.Pods("team", "")
			}
		})
	}
	wg.Wait()
	if got := len(l.Pods("", "")); got != 5 {
		t.Errorf("%d pods, want 5", got)
	}
}

// Closest has the first MaxNodes verdicts of a full sort.
func TestClosestIsASort(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var nearest Closest
		var all []candidate
		for i := range random.IntN(60) {
			capacity, unit := gpu.Units(random.IntN(4)), int64(256<<random.IntN(3))
			node := placement.NewNode(fmt.Sprintf("n%03d", i), gpu.Inventory{UnitMiB: unit, Devices: []gpu.Device{{UUID: "GPU-a", Allocatable: capacity}}}, nil)
			v := placement.Verdict{Reason: placement.Reason(random.IntN(int(placement.Fragmented) + 1)), Node: node}
			nearest.Add(&v, nearmiss.GapOf(v))
			all = append(all, candidate{&v, nearmiss.GapOf(v)})
		}
		slices.SortFunc(all, compare)
		all = all[:min(len(all), MaxNodes)]
		var want, got []string
		for _, v := range all {
			want = append(want, v.Node.Name)
		}
		for _, n := range nearest.Nodes() {
			got = append(got, n.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

func TestRanked(t *testing.T) {
	inv := func(units gpu.Units) gpu.Inventory {
		return gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{{UUID: "GPU-a", Allocatable: units}}}
	}
	var nodes []*placement.Node
	for i := range MaxNodes + 4 {
		n := placement.NewNode(fmt.Sprintf("n%02d", i), inv(gpu.Units(64-i)), nil)
		nodes = append(nodes, &n)
	}
	order := ranking.Ranking{First: ranking.Candidate{Node: nodes[3], Choice: placement.Choice{Order: placement.Order{Grouped: true}}}, ByPolicy: ranking.Candidate{Node: nodes[2]}}
	for i := range nodes {
		order.Best = append(order.Best, ranking.Scored{Node: nodes[(i+3)%len(nodes)], Score: int64(max(1, ranking.MaxScore-i))})
	}
	got := Ranked(order, len(nodes))
	if got.Verb != Prioritize || got.Result != Fits || got.Node != "n03" || got.Asked != len(nodes) || got.Fit != len(nodes) {
		t.Errorf("got %+v", got)
	}
	if want := "n03 ranks before n02, which is at least as good by the policy alone: a pod of its gpu-group is there"; got.Why != want {
		t.Errorf("why %q, want %q", got.Why, want)
	}
	if len(got.Nodes) != MaxNodes || got.Nodes[1].Name != "n04" || *got.Nodes[1].Score != ranking.MaxScore-1 {
		t.Errorf("nodes %+v, want the best %d", got.Nodes, MaxNodes)
	}
	if got := Ranked(ranking.Ranking{}, len(nodes)); got.Node != "" || got.Why != "" || len(got.Nodes) > 0 {
		t.Errorf("where the pod fits nowhere: %+v", got)
	}
}

// Recording that a pod fits allocates little, because the scheduler does it twice for each pod.
func TestAllocationsOfADecision(t *testing.T) {
	n := placement.NewNode("n", gpu.Inventory{UnitMiB: 1024}, nil)
	order := ranking.Ranking{First: ranking.Candidate{Node: &n}, ByPolicy: ranking.Candidate{Node: &n}}
	for range MaxNodes {
		order.Best = append(order.Best, ranking.Scored{Node: &n, Score: 1})
	}
	l := NewLog(4)
	made := testing.AllocsPerRun(20, func() { l.Add(ref("a"), Ranked(order, MaxNodes)) })
	if made > 8 {
		t.Errorf("%.0f allocations, want 8 at most", made)
	}
}

func TestRankedReleasesTheNodes(t *testing.T) {
	var gone []weak.Pointer[placement.Node]
	var order ranking.Ranking
	for i := range 2 {
		n := placement.NewNode(fmt.Sprintf("n%d", i), gpu.Inventory{UnitMiB: 1024}, nil)
		gone, order.Best = append(gone, weak.Make(&n)), append(order.Best, ranking.Scored{Node: &n, Score: 1})
	}
	d := Ranked(order, 2)
	runtime.GC()
	for i := range gone {
		if gone[i].Value() != nil {
			t.Errorf("the decision keeps node %d with its pods in memory", i)
		}
	}
	if *d.Nodes[1].Score != 1 {
		t.Errorf("got %+v", d)
	}
}

func TestLookSaysOfEachGPUWhyNot(t *testing.T) {
	inv := gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{
		{UUID: "GPU-a", Index: 0, Allocatable: 4},
		{UUID: "GPU-b", Index: 1, Allocatable: 16, Status: gpu.Unhealthy("XID 79")},
		{UUID: "GPU-c", Index: 2, Allocatable: 16},
		{UUID: "GPU-d", Index: 3, Allocatable: 16},
	}}
	asks := func(units gpu.Units) placement.Request {
		return placement.Request{Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: units})}
	}
	on := func(id gpu.UUID, units gpu.Units) placement.Assignment {
		return placement.Assignment{Shares: []placement.Share{{Device: id, Units: units}}}
	}
	node := placement.NewNode("n", inv, []placement.Holding{{Pod: ref("x"), Request: asks(12), Assignment: on("GPU-c", 12)}})
	want := Node{Name: "n", UnitMiB: 1024, GPUs: []GPU{
		{Index: 0, UUID: "GPU-a", Capacity: 4, Free: 4, FreeCores: new(100), Reason: "TooLarge"},
		{Index: 1, UUID: "GPU-b", Capacity: 16, Free: 16, FreeCores: new(100), Reason: "Unhealthy", Unhealthy: "XID 79", Status: gpu.Unhealthy("XID 79")},
		{Index: 2, UUID: "GPU-c", Capacity: 16, Free: 4, FreeCores: new(100), Reason: "Insufficient"},
		{Index: 3, UUID: "GPU-d", Capacity: 16, Free: 16, FreeCores: new(100), Chosen: true},
	}}
	if diff := cmp.Diff(want, DescribeNode(asks(8), node, on("GPU-d", 8))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	cores := func(units gpu.Units, cores int) placement.Request {
		r := asks(units)
		r.Containers = r.Containers.Each(func(c *placement.Container) { c.Cores = cores })
		return r
	}
	held := placement.Assignment{Shares: []placement.Share{{Device: "GPU-d", Units: 2, Cores: 80}}}
	node = placement.NewNode("n", inv, []placement.Holding{
		{Pod: ref("x"), Request: cores(2, 80), Assignment: held}, {Pod: ref("y"), Request: asks(12), Assignment: on("GPU-c", 12)},
	})
	for asked, want := range map[int]string{10: "Insufficient, ", 30: "Insufficient, InsufficientCores"} {
		got := DescribeNode(cores(8, asked), node, placement.Assignment{})
		if reasons := got.GPUs[2].Reason + ", " + got.GPUs[3].Reason; reasons != want {
			t.Errorf("%d per cent of cores: %q, want %q", asked, reasons, want)
		}
	}
}
