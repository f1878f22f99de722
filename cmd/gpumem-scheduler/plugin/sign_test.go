package plugin

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// If one plugin returns no signature for a pod, kube-scheduler reuses no result of another pod for it. Other
// pods have signatures, so that kube-scheduler can reuse results.
func TestSignPod(t *testing.T) {
	names, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	p := &Plugin{decider: &decider.Decider{Binder: &binder.Binder{Names: names}}}
	for units, want := range map[string]bool{"0": true, "3": false} {
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{
			Resources: v1.ResourceRequirements{Limits: v1.ResourceList{names.GPUMem(): resource.MustParse(units)}},
		}}}}
		fragments, status := p.SignPod(t.Context(), pod)
		if signed := status.IsSuccess(); signed != want || len(fragments) > 0 {
			t.Errorf("a pod with %s units: signed %t with fragments %v, want %t and none", units, signed, fragments, want)
		}
	}
}
