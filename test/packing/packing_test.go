package packing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// fixture is a small generated trace that resembles the published ones.
func fixture() Trace {
	random := rand.New(rand.NewPCG(7, 7))
	t := Trace{Name: "fixture"}
	for i := range 24 {
		n := Node{Name: fmt.Sprintf("node-%02d", i), CPU: 64_000, Memory: 262_144}
		count, model := 2, "T4"
		if i%3 == 0 {
			n.CPU, count, model = 96_000, 8, "G2"
		}
		n.GPUs = slices.Repeat([]GPU{{Model: model, Capacity: Milli}}, count)
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

// The generated fleet reproduces the recorded figures of every policy.
func TestRecordedFigures(t *testing.T) { compareFigures(t, fixture(), policies()) }

// docs/packing.md shows the figures of today, in two tables.
func TestTableOfTheDocs(t *testing.T) {
	trace, err := Read("docs", "testdata/nodes.csv", "testdata/pods.csv")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/packing.md")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !strings.Contains(cells[3], "±") {
			continue
		}
		compared++
		policy := strings.TrimSpace(strings.ReplaceAll(cells[1], "`", ""))
		at100, at130, err := arriveOften(trace, policy, 100)
		if err != nil {
			t.Fatal(err)
		}
		if want, got := strings.TrimSpace(cells[3]+"|"+cells[4]), at100+" | "+at130; got != want {
			t.Errorf("docs/packing.md, table, %s: it shows %s, want %s", policy, want, got)
		}
	}
	if compared != 9 {
		t.Errorf("the tables have %d rows, want 9", compared)
	}
}

// arriveOften returns the allocation at 100 % and 130 % of arrived demand, mean and deviation over
// the orders, as the table of the docs shows them.
func arriveOften(t Trace, policy string, orders int) (at100, at130 string, err error) {
	curves := make([]Curve, orders)
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range curves {
		group.Go(func() (err error) {
			curves[i], err = Arrive(t, policy, int64(i+1), false)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return "", "", err
	}
	text := func(percent int) string {
		sum, squares, n := 0.0, 0.0, float64(orders)
		for _, c := range curves {
			sum += c[percent]
			squares += c[percent] * c[percent]
		}
		return fmt.Sprintf("%.1f %% ± %.1f", hundredth(sum/n), hundredth(math.Sqrt(squares/n-sum/n*sum/n)))
	}
	return text(100), text(130), nil
}

func TestRead(t *testing.T) {
	const nodes = "sn,cpu_milli,memory_mib,gpu,model,gpu_units\nb,8000,100,2,T4,\na,96000,200,1,G2,16\n"
	const header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
	read := func(pods string) (Trace, error) {
		folder := t.TempDir()
		for name, text := range map[string]string{"nodes": nodes, "pods": pods} {
			if err := os.WriteFile(folder+"/"+name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return Read("t", folder+"/nodes", folder+"/pods")
	}
	got, err := read(header + "x,1000,10,1,500,T4|G2\ny,2000,20,0,0,\n")
	want := Trace{
		Name:  "t",
		Nodes: []Node{{"a", 96000, 200, []GPU{{"G2", 16}}}, {"b", 8000, 100, []GPU{{"T4", Milli}, {"T4", Milli}}}},
		Pods:  []Pod{{"x", Shape{CPU: 1000, Memory: 10, GPUs: 1, Units: 500, Models: "T4|G2"}}, {"y", Shape{CPU: 2000, Memory: 20}}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, trace (-want +got):\n%s", err, diff)
	}
	for pods, want := range map[string]string{
		header + "x,1000,10,1,half,\n": `line 2: column gpu_milli: "half": want a whole number of 0 or more`,
		header:                         "the nodes have 2016 units of GPU memory, and the pods request 0",
	} {
		if _, err := read(pods); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestInGiB(t *testing.T) {
	trace := Trace{
		Nodes: []Node{{Name: "a", GPUs: slices.Repeat([]GPU{{"T4", Milli}}, 2)}, {Name: "b", GPUs: slices.Repeat([]GPU{{"G3", Milli}}, 8)}},
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
	if diff := cmp.Diff([]gpu.Units{8, 80, 0}, units); diff != "" || got.Capacity() != 2*16+8*80 || trace.Capacity() != 10*Milli {
		t.Errorf("GPUs of %d GiB, before of %d units; GiB of each pod's GPU (-want +got):\n%s", got.Capacity(), trace.Capacity(), diff)
	}
	if _, err := trace.InGiB("gib", GiB{"T4": 16}); err == nil || !strings.Contains(err.Error(), "the memory of a G3 is unknown") {
		t.Errorf("error %v, want that the memory of G3 is unknown", err)
	}
}

// kube-scheduler places a pod without a GPU, whatever the policy.
func TestPodsWithoutAGPU(t *testing.T) {
	gpus := slices.Repeat([]GPU{{"T4", 16}}, 2)
	trace := Trace{
		Name: "t",
		Nodes: []Node{
			{Name: "a", CPU: 32_000, Memory: 64_000, GPUs: gpus}, {Name: "b", CPU: 32_000, Memory: 64_000, GPUs: gpus},
			{Name: "c", CPU: 32_000, Memory: 16_000, GPUs: gpus},
		},
		Pods: []Pod{{Name: "gpu", Shape: Shape{CPU: 8000, Memory: 8000, GPUs: 1, Units: 4}}, {Name: "none", Shape: Shape{CPU: 8000, Memory: 8000}}},
	}
	for _, policy := range []string{ours, "first-fit"} {
		r, err := newRun(trace, []int{0, 1, 2}, policy, 1)
		if err != nil {
			t.Fatal(err)
		}
		for pod, on := range []int{0, 1} {
			s := r.fleet.shape(trace.Pods[pod].Shape)
			if at, ok, err := r.place(pod, &s); err != nil || !ok || at.node != on {
				t.Errorf("%s: pod %s is on node %d (%t, %v), want %d", policy, trace.Pods[pod].Name, at.node, ok, err, on)
			}
		}
	}
}
