package replay

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

func TestReadSimple(t *testing.T) {
	const nodes = "name,gpus,gpu-mem,gpu-model,cpu\nb,1,16,T4,8000\na,2,80,A100,\n"
	tests := map[string]struct {
		pods    string
		want    []Pod
		wantErr string
	}{
		"all columns": {
			pods: "name,gpu-mem,gpu-core,gpu-count,gpu-model,arrival,duration,cpu,memory\nx,10,30,2,A100*|T4,1.5,60,4000,100\n",
			want: []Pod{{Name: "x", Arrival: 1.5, Duration: 60, Shape: Shape{CPU: 4000, Memory: 100, GPUs: 2, Units: 10, Cores: 30, Models: "A100*|T4"}}},
		},
		"the least, with a comment": {
			pods: "name,gpu-mem\n# a comment\nx,10\ny,\nz,1\n",
			want: []Pod{{Name: "x", Shape: Shape{GPUs: 1, Units: 10}}, {Name: "y"}, {Name: "z", Shape: Shape{GPUs: 1, Units: 1}}},
		},
		"too many GPUs":     {pods: "name,gpu-mem,gpu-count\nx,1,1000\n", wantErr: "pod x: asks for 65 GPUs"},
		"more than a GPU":   {pods: "name,gpu-mem,gpu-core\nx,1,101\n", wantErr: "pod x: asks for 101% of a GPU's cores"},
		"no number":         {pods: "name,gpu-mem,duration\nx,1,long\n", wantErr: `pods: line 2: column duration: "long": want a number`},
		"what is no amount": {pods: "name,gpu-mem,arrival\nx,1,NaN\n", wantErr: "arrival or duration is negative or no number"},
		"no pods":           {pods: "name,gpu-mem\n", wantErr: "no pod asks for GPU memory"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ReadSimple("t", strings.NewReader(nodes), strings.NewReader(tc.pods))
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.Pods); diff != "" {
				t.Errorf("pods (-want +got):\n%s", diff)
			}
			want := []Node{
				{Name: "a", CPU: Unlimited, Memory: Unlimited, GPUs: []GPU{{"A100", 80}, {"A100", 80}}},
				{Name: "b", CPU: 8000, Memory: Unlimited, GPUs: []GPU{{"T4", 16}}},
			}
			if diff := cmp.Diff(want, got.Nodes); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodesAddedAndRemoved(t *testing.T) {
	before := fixture()
	more, err := before.AddNodes("node-00", 2)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := more.Capacity()-before.Capacity(), gpu.Units(16*Milli); got != want || len(before.Nodes) != 24 {
		t.Errorf("%d units more on %d nodes before, want %d and 24", got, len(before.Nodes), want)
	}
	fewer, err := more.RemoveNodes("node-00*")
	if err != nil {
		t.Fatal(err)
	}
	if len(fewer.Nodes) != 23 || len(more.Nodes) != 26 {
		t.Errorf("%d nodes left of %d, want 23 of 26", len(fewer.Nodes), len(more.Nodes))
	}
	for problem, try := range map[string]func() (Trace, error){
		`there is no node "x"`:     func() (Trace, error) { return before.AddNodes("x", 1) },
		`no node matches "x*"`:     func() (Trace, error) { return before.RemoveNodes("x*") },
		"syntax error":             func() (Trace, error) { return before.RemoveNodes("[") },
		"the fleet has no GPU":     func() (Trace, error) { return before.RemoveNodes("*") },
		"node-01-added-1 is liste": func() (Trace, error) { return addTwice(before) },
	} {
		if _, err := try(); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("error %v, want one with %q", err, problem)
		}
	}
}

func addTwice(t Trace) (Trace, error) {
	t, err := t.AddNodes("node-01", 1)
	if err != nil {
		return Trace{}, err
	}
	return t.AddNodes("node-01", 1)
}

func TestSnapshotBecomesATrace(t *testing.T) {
	inv := gpu.Inventory{UnitMiB: 1024, CPU: 16_000, Devices: []gpu.Device{
		{UUID: "GPU-a", Model: "Tesla T4", Allocatable: 14}, {UUID: "GPU-b", Index: 1, Model: "Tesla T4", Allocatable: 14, Status: gpu.Unhealthy("XID 79")},
	}}
	req := placement.Request{Count: 1, Containers: placement.NewContainers(placement.Container{Units: 3, Kind: placement.App}), CPU: 2000, Models: placement.NewGlobs("T4", "A100*")}
	node := placement.NewNode("n", inv, []placement.Holding{
		{Pod: placement.PodRef{Namespace: "ns", Name: "p", UID: "1"}, Request: req, Assignment: placement.Assignment{Shares: []placement.Share{{Device: "GPU-a", Units: 3}}}},
		{Pod: placement.PodRef{Namespace: "ns", Name: "other", UID: "2"}, Request: placement.Request{CPU: 1000}},
	})
	text, err := json.Marshal(NewSnapshot([]placement.Node{node, {Name: "no GPU"}}, map[string]placement.Request{"ns/waits": req}))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadSnapshot("t", strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	shape := Shape{CPU: 2000, GPUs: 1, Units: 3, Models: "T4|A100*"}
	want := Trace{
		Name:  "t",
		Nodes: []Node{{Name: "n", CPU: 15_000, Memory: Unlimited, GPUs: []GPU{{"Tesla T4", 14}}}},
		Pods:  []Pod{{Name: "ns/p", Shape: shape}, {Name: "ns/waits", Shape: shape}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("trace (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "{}", `{"apiVersion":"v1"}`, `{"apiVersion":"gpumem.dev/snapshot/v1"}`} {
		if _, err := ReadSnapshot("t", strings.NewReader(bad)); err == nil {
			t.Errorf("%q is read without an error", bad)
		}
	}
}

// A record shows the same run as Arrive.
func TestWatchChangesNothing(t *testing.T) {
	for _, policy := range Policies() {
		run, err := Arrive(fixture(), policy, 42)
		if err != nil {
			t.Fatal(err)
		}
		record, err := Watch(fixture(), policy, 42)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fill(run.Curve()), record.Allocated); diff != "" {
			t.Errorf("%s (-run +watched):\n%s", policy, diff)
		}
		again, err := Watch(fixture(), policy, 42)
		if err != nil || !reflect.DeepEqual(record, again) {
			t.Errorf("%s: error %v, or a second record that differs", policy, err)
		}
		if _, err := json.Marshal(record); err != nil {
			t.Errorf("%s: %v", policy, err)
		}
	}
}
