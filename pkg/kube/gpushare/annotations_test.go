package gpushare

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

func names(t testing.TB, domain string) api.Names {
	t.Helper()
	n, err := api.NewNames(domain)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// bound is the condition of a pod that a scheduler has bound.
var bound = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}}

var inventory = gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{
	{UUID: "GPU-a", Index: 0, MemoryMiB: 81920, Allocatable: 79}, {UUID: "GPU-b", Index: 3, MemoryMiB: 2048, Allocatable: 2},
}}

func TestIndexes(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        []int
	}{
		"nothing":                     {nil, nil},
		"an index":                    {map[string]string{"ALIYUN_COM_GPU_MEM_IDX": "3"}, []int{3}},
		"none":                        {map[string]string{"ALIYUN_COM_GPU_MEM_IDX": "-1"}, nil},
		"several in one":              {map[string]string{"ALIYUN_COM_GPU_MEM_IDX": "0,3"}, nil},
		"something else":              {map[string]string{"ALIYUN_COM_GPU_MEM_IDX": "GPU-a"}, nil},
		"containers on one GPU":       {map[string]string{"scheduler.framework.gpushare.allocation": `{"0":{"1":2},"1":{"1":4}}`}, []int{1}},
		"on several":                  {map[string]string{"scheduler.framework.gpushare.allocation": `{"0":{"3":2,"0":2}}`}, []int{0, 3}},
		"the index before the others": {map[string]string{"ALIYUN_COM_GPU_MEM_IDX": "3", "scheduler.framework.gpushare.allocation": `{"0":{"1":2}}`}, []int{3}},
		"an allocation of nothing":    {map[string]string{"scheduler.framework.gpushare.allocation": `{}`}, nil},
		"a broken allocation":         {map[string]string{"scheduler.framework.gpushare.allocation": `{"0":{"x":2}}`}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}, Status: v1.PodStatus{Conditions: bound}}
			if diff := cmp.Diff(tc.want, Indexes(names(t, "aliyun.com"), pod)); diff != "" {
				t.Errorf("indexes (-want +got):\n%s", diff)
			}
			if got := Indexes(names(t, api.DefaultDomain), pod); got != nil {
				t.Errorf("under other names: %v", got)
			}
		})
	}
}

// The form is gpushare's, and programs made for it read it.
func TestAnnotations(t *testing.T) {
	on := placement.NewNode("n", inventory, nil)
	one := placement.Assignment{Shares: []placement.Share{{Device: "GPU-b", Units: 2}}}
	two := placement.Assignment{Shares: []placement.Share{{Device: "GPU-a", Units: 2}, {Device: "GPU-b", Units: 2}}}
	at := time.Unix(1700000000, 5)
	for name, tc := range map[string]struct {
		assignment placement.Assignment
		assumed    time.Time
		assigned   bool
		want       map[string]string
	}{
		"at the binding": {one, at, false, map[string]string{
			"ALIYUN_COM_GPU_MEM_IDX": "3", "ALIYUN_COM_GPU_MEM_POD": "2", "ALIYUN_COM_GPU_MEM_DEV": "2",
			"ALIYUN_COM_GPU_MEM_ASSIGNED": "false", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000005",
		}},
		"after admission": {one, time.Time{}, true, map[string]string{
			"ALIYUN_COM_GPU_MEM_IDX": "3", "ALIYUN_COM_GPU_MEM_POD": "2", "ALIYUN_COM_GPU_MEM_DEV": "2", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
		}},
		"on two GPUs": {two, time.Time{}, true, map[string]string{
			"scheduler.framework.gpushare.allocation": `{"0":{"0":2,"3":2}}`,
			"ALIYUN_COM_GPU_MEM_POD":                  "4", "ALIYUN_COM_GPU_MEM_DEV": "2", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Annotations(names(t, "aliyun.com"), tc.assignment, on, tc.assumed, tc.assigned)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: got}, Status: v1.PodStatus{Conditions: bound}}
			if indexes := Indexes(names(t, "aliyun.com"), pod); len(indexes) != len(tc.assignment.Shares) || indexes[len(indexes)-1] != 3 {
				t.Errorf("read back: %v", indexes)
			}
			if Waits(names(t, "aliyun.com"), pod) == tc.assigned {
				t.Errorf("read back: waits %t", !tc.assigned)
			}
			if got := Annotations(names(t, api.DefaultDomain), tc.assignment, on, tc.assumed, tc.assigned); got != nil {
				t.Errorf("under other names: %v", got)
			}
		})
	}
}

func TestReads(t *testing.T) {
	for key, want := range map[string][2]bool{ // by gpumem's names, by gpushare's
		"gpumem.dev/assignment":                   {true, false},
		"aliyun.com/assignment":                   {false, true},
		"ALIYUN_COM_GPU_MEM_IDX":                  {false, true},
		"ALIYUN_COM_GPU_MEM_ASSIGNED":             {false, true},
		"scheduler.framework.gpushare.allocation": {false, true},
		"ALIYUN_COM_GPU_MEM_POD":                  {false, false},
		"example.com/gpumem.dev/x":                {false, false},
	} {
		if got := [2]bool{Reads(names(t, api.DefaultDomain), key), Reads(names(t, "aliyun.com"), key)}; got != want {
			t.Errorf("Reads(%q) = %v, want %v", key, got, want)
		}
	}
}

// FuzzIndexes: whatever is written where gpushare writes, each GPU is
// named once, in order, and by an index that one can have.
func FuzzIndexes(f *testing.F) {
	f.Add("2", "", "true")
	f.Add("-1", `{"c":{"1":3,"0":3},"d":{"1":1}}`, "false")
	f.Add("x", `{"c":{"-1":3}}`, "")
	f.Add("", `{"c":null,"d":{"99999999999999999999":1}}`, "")
	n := names(f, "aliyun.com")
	f.Fuzz(func(t *testing.T, index, allocation, assigned string) {
		p := &v1.Pod{Status: v1.PodStatus{Conditions: bound}}
		p.Annotations = map[string]string{Index: index, allocationKey: allocation, assignedKey: assigned}
		got := Indexes(n, p)
		for i, index := range got {
			if index < 0 || i > 0 && index <= got[i-1] {
				t.Fatalf("GPUs %v", got)
			}
		}
		if want := assigned == "false"; Waits(n, p) != want {
			t.Fatalf("waits: %t, want %t", !want, want)
		}
	})
}
