package replay

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

var update = flag.Bool("update", false, "rewrite the recorded curves")

// fixture is a small trace in the likeness of the published ones.
func fixture() Trace {
	random := rand.New(rand.NewPCG(7, 7))
	t := Trace{Name: "fixture"}
	for i := range 24 {
		n := Node{Name: fmt.Sprintf("node-%02d", i), CPU: 64_000, Memory: 262_144}
		count, model := 2, "T4"
		if i%3 == 0 {
			n.CPU, count, model = 96_000, 8, "G2"
		}
		for range count {
			n.GPUs = append(n.GPUs, GPU{Model: model, Capacity: Milli})
		}
		t.Nodes = append(t.Nodes, n)
	}
	for i := range 150 {
		p := Pod{Name: fmt.Sprintf("pod-%03d", i), Shape: Shape{CPU: 1000 * random.Int64N(14), Memory: 4096}}
		switch kind := random.IntN(20); {
		case kind < 3:
		case kind < 10:
			p.GPUs, p.Units = 1, []gpu.Units{140, 320, 470, 650, 810}[random.IntN(5)]
		case kind < 18:
			p.GPUs, p.Units = 1, Milli
		default:
			p.GPUs, p.Units = 1<<(kind-17), Milli
		}
		if p.GPUs > 0 && random.IntN(5) == 0 {
			p.Models = []string{"T4", "G2", "G2|T4"}[random.IntN(3)]
		}
		t.Pods = append(t.Pods, p)
	}
	return t
}

// The results of the fixture are recorded by a version that reproduces all
// published curves.
func TestRecordedCurves(t *testing.T) {
	const file = "testdata/recorded.json"
	got := make(map[string][]float64)
	for _, policy := range published() {
		for seed := int64(42); seed < 44; seed++ {
			run, err := Published(fixture(), policy, seed)
			if err != nil {
				t.Fatal(err)
			}
			curve := run.Curve()
			var points []float64
			for i := 70; i <= buckets; i += 10 {
				points = append(points, curve[i])
			}
			got[fmt.Sprintf("%s %d", policy, seed)] = points
		}
	}
	if *update {
		text, err := json.MarshalIndent(got, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want map[string][]float64
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("allocation at 70, 80 … 130%% of arrived demand (-recorded +got):\n%s", diff)
	}
}

// forgetful is the loop of first without anything kept.
type forgetful struct{ scorer }

func (p forgetful) choose(f *Fleet, s *shape) (place, bool) {
	best, highest := -1, int64(0)
	for i := range f.nodes {
		n := &f.nodes[i]
		if !s.fits(n) {
			continue
		}
		if score := p.score(f, s, n); best < 0 || score > highest {
			best, highest = i, score
		}
	}
	if best < 0 {
		return place{}, false
	}
	return place{node: best, gpus: p.devices(f, s, &f.nodes[best])}, true
}

func TestKeptScoresAreThoseOfNow(t *testing.T) {
	trace := fixture()
	order := make([]int, len(trace.Nodes))
	for i := range order {
		order[i] = i
	}
	for _, policy := range allPolicies() {
		t.Run(policy, func(t *testing.T) {
			policyOf, err := anyPolicy(policy)
			if err != nil {
				t.Fatal(err)
			}
			outcome := func(forget bool) Arrivals {
				r, err := newRun(trace, order, policyOf)
				if err != nil {
					t.Fatal(err)
				}
				if p, keeps := r.policy.(*first); keeps && forget {
					r.policy = forgetful{p.scorer}
				}
				r.others = r.policy
				for range 2 {
					for _, p := range trace.Pods {
						r.pods = append(r.pods, r.fleet.shape(p.Shape))
					}
				}
				got, err := r.arrivals()
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			if diff := cmp.Diff(outcome(true), outcome(false)); diff != "" {
				t.Errorf("(-nothing kept +kept):\n%s", diff)
			}
		})
	}
}

func TestReadOpenB(t *testing.T) {
	const nodes = "sn,cpu_milli,memory_mib,gpu,model\nb,8000,100,2,T4\na,96000,200,8,G2\n"
	const header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
	tests := map[string]struct {
		nodes, pods string
		want        Trace
		wantErr     string
	}{
		"pods and nodes": {
			nodes: nodes, pods: header + "x,1000,10,1,500,T4|G2\ny,2000,20,0,0,\n",
			want: Trace{
				Name: "t",
				Nodes: []Node{
					{Name: "a", CPU: 96000, Memory: 200, GPUs: slices.Repeat([]GPU{{"G2", Milli}}, 8)},
					{Name: "b", CPU: 8000, Memory: 100, GPUs: slices.Repeat([]GPU{{"T4", Milli}}, 2)},
				},
				Pods: []Pod{
					{Name: "x", Shape: Shape{CPU: 1000, Memory: 10, GPUs: 1, Units: 500, Models: "T4|G2"}},
					{Name: "y", Shape: Shape{CPU: 2000, Memory: 20}},
				},
			},
		},
		"a column that is not there": {
			nodes: nodes, pods: "name,cpu_milli\n", wantErr: "column memory_mib is missing: the file has name,cpu_milli",
		},
		"no number": {
			nodes: nodes, pods: header + "x,1000,10,1,half,\n", wantErr: `pods: line 2: column gpu_milli: "half": want a whole number of 0 or more`,
		},
		"too much": {
			nodes: nodes, pods: header + "x,1000,10,1,9223372036854775807,\n", wantErr: "want a whole number",
		},
		"a node twice": {
			nodes: nodes + "a,1,1,1,T4\n", pods: header + "x,1,1,1,1,\n", wantErr: "node a is listed twice",
		},
		"GPUs without an amount": {
			nodes: nodes, pods: header + "x,1,1,1,0,\n", wantErr: "pod x: asks for GPUs and nothing of them",
		},
		"nothing at all": {nodes: "", pods: "", wantErr: "nodes: read the header: EOF"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ReadOpenB("t", strings.NewReader(tc.nodes), strings.NewReader(tc.pods))
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("trace (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInGiB(t *testing.T) {
	trace := Trace{
		Name: "t",
		Nodes: []Node{
			{Name: "a", GPUs: []GPU{{"T4", Milli}, {"T4", Milli}}},
			{Name: "b", GPUs: slices.Repeat([]GPU{{"G3", Milli}}, 8)},
		},
		Pods: []Pod{
			{Name: "half of a T4", Shape: Shape{GPUs: 1, Units: 450, Models: "T4"}},
			{Name: "as many as only G3 nodes have", Shape: Shape{GPUs: 8, Units: Milli}},
			{Name: "none"},
		},
	}
	got, err := trace.InGiB("gib", GiB{"T4": 16, "G3": 80})
	if err != nil {
		t.Fatal(err)
	}
	var units []gpu.Units
	for _, p := range got.Pods {
		units = append(units, p.Units)
	}
	if diff := cmp.Diff([]gpu.Units{8, 80, 0}, units); diff != "" {
		t.Errorf("GiB of each GPU (-want +got):\n%s", diff)
	}
	if got.Nodes[0].GPUs[0].Capacity != 16 || got.Nodes[1].GPUs[7].Capacity != 80 || trace.Nodes[0].GPUs[0].Capacity != Milli {
		t.Error("the GPUs have not the memory of their models, or the trace itself was changed")
	}
	if _, err := trace.InGiB("gib", GiB{"T4": 16}); err == nil || !strings.Contains(err.Error(), "how much memory a G3 has is not known") {
		t.Errorf("error %v, want that G3 is not known", err)
	}
}

// A pod without a GPU goes where kube-scheduler puts it, and not where the policy would.
func TestPodsWithoutAGPUAreKubeSchedulers(t *testing.T) {
	gpus := slices.Repeat([]GPU{{"T4", 16}}, 2)
	trace := Trace{
		Name: "t",
		Nodes: []Node{
			{Name: "a", CPU: 32_000, Memory: 64_000, GPUs: gpus}, {Name: "b", CPU: 32_000, Memory: 64_000, GPUs: gpus},
			{Name: "c", CPU: 32_000, Memory: 16_000, GPUs: gpus},
		},
		Pods: []Pod{{Name: "gpu", Shape: Shape{CPU: 8000, Memory: 8000, GPUs: 1, Units: 4}}, {Name: "none", Shape: Shape{CPU: 8000, Memory: 8000}}},
	}
	for policy, want := range map[string]int{"binpack": 1, "first-fit": 1} {
		policyOf, err := named(policy)
		if err != nil {
			t.Fatal(err)
		}
		r, err := newRun(trace, []int{0, 1, 2}, policyOf)
		if err != nil {
			t.Fatal(err)
		}
		for pod, on := range []int{0, want} {
			s := r.fleet.shape(trace.Pods[pod].Shape)
			if at, ok, err := r.place(pod, &s); err != nil || !ok || at.node != on {
				t.Errorf("%s: pod %s is on node %d (%t, %v), want %d", policy, trace.Pods[pod].Name, at.node, ok, err, on)
			}
		}
	}
}
