package policies

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An amount with a suffix of bytes is refused, and one that a node could offer never is.
func TestAmountsInBytes(t *testing.T) {
	const tooMuch = "gpumem.dev/gpu-mem is more than any GPU has: write a number without a suffix, the unit is 1 GiB"
	for amount, wants := range map[string]struct{ gib, quarter string }{ // by the unit
		"0":       {},
		"1":       {},
		"3k":      {},
		"288k":    {}, // MiB of the largest GPU
		"1M":      {}, // more than the kubelet takes of a node
		"1000001": {"container main: gpumem.dev/gpu-mem is 1000001: write 1, the unit is 1 GiB", "write 1, the unit is 256 MiB"},
		"3Gi":     {"container main: gpumem.dev/gpu-mem is 3Gi: write 3, the unit is 1 GiB", "write 12, the unit is 256 MiB"},
		"2.5Gi":   {"container main: gpumem.dev/gpu-mem is 2560Mi: write 3, the unit is 1 GiB", "write 10, the unit is 256 MiB"},
		"3G":      {"container main: gpumem.dev/gpu-mem is 3G: write 3, the unit is 1 GiB", "write 12, the unit is 256 MiB"},
		"512Mi":   {"container main: gpumem.dev/gpu-mem is 512Mi: write 1, the unit is 1 GiB", "write 2, the unit is 256 MiB"},
		// Rounded up, it is beyond 64 bits.
		"9223372036854775807": {tooMuch, "write a number without a suffix, the unit is 256 MiB"},
	} {
		for values, want := range map[string]string{"default": wants.gib, "units256": wants.quarter} {
			t.Run(amount+" "+values, func(t *testing.T) {
				p := policy(t, values, "gpumem-annotations")
				asking := v1.Container{Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse(amount)}}}
				pod := v1.PodSpec{Containers: []v1.Container{{Name: "other"}, asking}}
				check(t, p, request{resource: "pods", is: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"}, Spec: pod}}, want)
				init := v1.PodSpec{InitContainers: []v1.Container{asking}, Containers: []v1.Container{{Name: "other"}}}
				check(t, p, request{resource: "deployments", is: &appsv1.Deployment{
					ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "d"},
					Spec:       appsv1.DeploymentSpec{Template: v1.PodTemplateSpec{Spec: init}},
				}}, want)
			})
		}
	}
}
