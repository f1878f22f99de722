package nodeapi

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

func TestStartupTaintIsRemoved(t *testing.T) {
	team := v1.Taint{Key: "team", Effect: v1.TaintEffectNoSchedule}
	startup := v1.Taint{Key: api.StartupTaint, Effect: v1.TaintEffectNoExecute}
	for name, tc := range map[string]struct {
		taints      []v1.Taint
		api         string
		allocatable v1.ResourceList
		want        []v1.Taint
	}{
		"the kubelet advertises nothing":        {taints: []v1.Taint{startup, team}, want: []v1.Taint{startup, team}},
		"the kubelet advertises 0":              {taints: []v1.Taint{startup}, allocatable: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("0")}, want: []v1.Taint{startup}},
		"the kubelet advertises units":          {taints: []v1.Taint{team, startup}, allocatable: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("14")}, want: []v1.Taint{team}},
		"the kubelet advertises other GPUs":     {taints: []v1.Taint{startup}, allocatable: v1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}, want: []v1.Taint{startup}},
		"the kubelet advertises shares":         {taints: []v1.Taint{startup}, api: api.InShares, allocatable: v1.ResourceList{"gpumem.dev/gpu-share": resource.MustParse("10")}, want: []v1.Taint{}},
		"units of a node that offers shares":    {taints: []v1.Taint{startup}, api: api.InShares, allocatable: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("14")}, want: []v1.Taint{startup}},
		"a node by claims":                      {taints: []v1.Taint{startup, team}, api: api.ByClaims, want: []v1.Taint{team}},
		"a node without the taint stays as is ": {taints: []v1.Taint{team}, allocatable: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("14")}, want: []v1.Taint{team}},
	} {
		t.Run(name, func(t *testing.T) {
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1.NodeSpec{Taints: tc.taints}, Status: v1.NodeStatus{Allocatable: tc.allocatable}}
			client := fake.NewClientset(node)
			n := NewPublisher(client, names(t), "n1", zap.NewNop())
			n.SetAPIs(tc.api, []string{tc.api})
			trimmed, err := n.trim(node)
			if err != nil {
				t.Fatal(err)
			}
			if err := n.removeStartupTaint(t.Context(), trimmed.(*v1.Node)); err != nil {
				t.Fatal(err)
			}
			got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.Spec.Taints); diff != "" {
				t.Errorf("taints (-want +got):\n%s", diff)
			}
		})
	}
}

// A taint that has moved to the startup taint's position is not removed instead.
func TestStartupTaintThatMoved(t *testing.T) {
	startup := v1.Taint{Key: api.StartupTaint, Effect: v1.TaintEffectNoSchedule}
	taints := []v1.Taint{{Key: "team", Effect: v1.TaintEffectNoSchedule}, startup}
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1.NodeSpec{Taints: taints}})
	n := NewPublisher(client, names(t), "n1", zap.NewNop())
	known := &v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{startup}}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("14")}}}
	if err := n.removeStartupTaint(t.Context(), known); err == nil {
		t.Error("the patch of an outdated list succeeds")
	}
	if got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil || len(got.Spec.Taints) != 2 {
		t.Errorf("taints %v, %v", got.Spec.Taints, err)
	}
}
