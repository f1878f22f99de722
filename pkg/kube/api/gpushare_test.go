package api

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodsThatGPUSharePlaced(t *testing.T) {
	const index, allocation, assumed, assignment = "ALIYUN_COM_GPU_MEM_IDX", "scheduler.framework.gpushare.allocation", "ALIYUN_COM_GPU_MEM_ASSUME_TIME", "aliyun.com/assignment"
	for name, tc := range map[string]struct {
		domain      string // default: aliyun.com
		waits       bool
		annotations []string
		recorded    string // in the managed fields
		want        bool
	}{
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
