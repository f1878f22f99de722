package api

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRetiredMPSClient(t *testing.T) {
	const gpus = `"gpus":[{"uuid":"GPU-1","index":0,"memoryMiB":16384,"units":16,"healthy":true}]`
	assigned := func(level string) string {
		return `{"v":1,"unitMiB":1024,"enforcement":"` + level + `","gpus":[{"uuid":"GPU-1","index":0,"units":3}]}`
	}
	for name, tc := range map[string]struct {
		inventory, assignment, node string
		want                        bool
	}{
		"limited by MPS":              {inventory: `{"v":1,"unitMiB":1024,"mps":3,` + gpus + `}`, assignment: assigned("mps"), want: true},
		"limited by the driver too":   {inventory: `{"v":1,"unitMiB":1024,"mps":3,` + gpus + `}`, assignment: assigned("kernel"), want: true},
		"before the daemon":           {inventory: `{"v":1,"unitMiB":1024,"mps":3,` + gpus + `}`, assignment: assigned("advisory")},
		"by a claim":                  {inventory: `{"v":1,"unitMiB":1024,"mps":3,"given":[{"uid":"u","pod":"ns/p","gpus":[[0,3,0]]}],` + gpus + `}`, want: true},
		"by the claim of another pod": {inventory: `{"v":1,"unitMiB":1024,"mps":3,"given":[{"uid":"v","pod":"ns/q","gpus":[[0,3,0]]}],` + gpus + `}`},
		"protocol 2":                  {inventory: `{"v":1,"unitMiB":1024,"mps":2,` + gpus + `}`, assignment: assigned("mps")},
		"no daemon":                   {inventory: `{"v":1,"unitMiB":1024,` + gpus + `}`, assignment: assigned("kernel")},
		"no inventory":                {assignment: assigned("mps")},
		"of another node":             {inventory: `{"v":1,"unitMiB":1024,"mps":3,` + gpus + `}`, assignment: assigned("mps"), node: "n2"},
	} {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{"gpumem.dev/inventory": tc.inventory}}}
		p := annotated(pod(container("c", "gpu-mem", "3")), "assignment", tc.assignment)
		p.Namespace, p.Name, p.Spec.NodeName = "ns", "p", "n1"
		if tc.node != "" {
			p.Spec.NodeName = tc.node
		}
		if got := names(t).RetiredMPSClient(node, p); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}
