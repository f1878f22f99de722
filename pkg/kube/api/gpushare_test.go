package api

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

func TestManifestsForGPUShareRunUnchanged(t *testing.T) {
	n, err := NewNames(gpushareDomain)
	if err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{
		Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"aliyun.com/gpu-mem": resource.MustParse("3")}},
	}}}}
	request, err := n.Request(pod)
	if err != nil || request.Units() != 3 {
		t.Errorf("it requests %d units, %v; want 3", request.Units(), err)
	}
	want := placement.Assignment{UnitMiB: 1024, Shares: []placement.Share{{Device: "GPU-a", Units: 3}}}
	node := placement.NewNode("n1", gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{{UUID: "GPU-a", Allocatable: 14}}}, nil)
	binding, err := n.Binding(placement.PodRef{Namespace: "ml", Name: "p", UID: "u"}, "n1", want, node)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"aliyun.com/assignment", "aliyun.com/gpu-index"}, slices.Sorted(maps.Keys(binding.Annotations))); diff != "" {
		t.Errorf("annotations of the Binding (-want +got):\n%s", diff)
	}
	pod.Annotations, pod.Spec.NodeName = binding.Annotations, "n1"
	pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}}
	if got, err := n.AssignmentOf(pod); err != nil || !got.SameDevices(want) {
		t.Errorf("it is assigned %v, %v; want %v", got, err, want)
	}
}

func TestPodsThatGPUSharePlaced(t *testing.T) {
	const index, allocation, assumed, assignment = "ALIYUN_COM_GPU_MEM_IDX", "scheduler.framework.gpushare.allocation", "ALIYUN_COM_GPU_MEM_ASSUME_TIME", "aliyun.com/assignment"
	for name, tc := range map[string]struct {
		domain      string // default: aliyun.com
		waits       bool
		annotations []string
		recorded    string // fields in managedFields
		idle        bool   // no container requests GPU memory
		want        bool
	}{
		"by nobody: asks for no GPU":     {annotations: []string{index, assumed}, recorded: assumed, idle: true},
		"by gpushare":                    {annotations: []string{index, assumed}, recorded: assumed, want: true},
		"by its successor":               {annotations: []string{allocation}, want: true},
		"by gpushare, taken over by 0.2": {annotations: []string{index, assumed, assignment}, recorded: assumed, want: true},
		"by gpumem 0.2":                  {annotations: []string{index, assumed, assignment}},
		"by gpumem 0.2, corrected":       {annotations: []string{index, assumed, assignment}, recorded: index},
		"by gpumem":                      {annotations: []string{assignment}},
		"by nobody yet":                  {waits: true, annotations: []string{index, assumed}, recorded: assumed},
		"under another domain":           {domain: DefaultDomain, annotations: []string{index, assumed}, recorded: assumed},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.domain == "" {
				tc.domain = gpushareDomain
			}
			n, err := NewNames(tc.domain)
			if err != nil {
				t.Fatal(err)
			}
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: make(map[string]string)}, Spec: v1.PodSpec{NodeName: "n1"}}
			for _, key := range tc.annotations {
				pod.Annotations[key] = "0"
			}
			if !tc.idle {
				pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{n.GPUMem(): resource.MustParse("3")}}}}
			}
			if tc.waits {
				pod.Spec.NodeName = ""
			}
			pod.ManagedFields = []metav1.ManagedFieldsEntry{{}, {FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:` + tc.recorded + `":{}}}}`)}}
			if got := n.PlacedByGPUShare(pod); got != tc.want {
				t.Errorf("placed by gpushare: %t, want %t", got, tc.want)
			}
		})
	}
}
