package policies

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// TestLargePods evaluates the policies for pods near the size that the API server accepts
// (3 MiB of JSON). The API server limits the cost of an expression, and refuses a pod with
// "actual cost limit exceeded" when a policy exceeds it. Policies that only warn are left out:
// the API server skips them for such a pod.
func TestLargePods(t *testing.T) {
	const tooLarge = "the pod is too large to check: a pod that asks for gpumem.dev/gpu-mem may have 500 containers and 10000 environment variables"
	unit := v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("1")}
	many := func(n int, add func(p *v1.Pod, name string)) func(*v1.Pod) {
		return func(p *v1.Pod) {
			for i := range n {
				add(p, fmt.Sprint("n", i))
			}
		}
	}
	variable := func(p *v1.Pod, name string) {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, v1.EnvVar{Name: name})
	}
	container := func(p *v1.Pod, name string) {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name, Image: "i"})
	}
	for name, tc := range map[string]struct {
		change  func(*v1.Pod)
		refused string // by reserved-names
	}{
		"variables at the limit":     {change: many(10_000, variable)},
		"one more variable":          {change: many(10_001, variable), refused: tooLarge},
		"as many variables as fit":   {change: many(50_000, variable), refused: tooLarge},
		"containers at the limit":    {change: many(499, container)},
		"one more container":         {change: many(500, container), refused: tooLarge},
		"as many containers as fit":  {change: many(20_000, container), refused: tooLarge},
		"a long name of a variable":  {change: func(p *v1.Pod) { variable(p, strings.Repeat("A", 1<<20)) }},
		"as many labels as fit":      {change: many(20_000, func(p *v1.Pod, name string) { p.Labels[name] = "" })},
		"as many annotations as fit": {change: many(20_000, func(p *v1.Pod, name string) { p.Annotations[name] = "" })},
		"a reserved name after many others": {
			change:  func(p *v1.Pod) { many(9_999, variable)(p); variable(p, "GPUMEM_FRACTION") },
			refused: "container main sets GPUMEM_FRACTION, which gpumem sets",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", Labels: map[string]string{}, Annotations: map[string]string{}},
				Spec:       v1.PodSpec{SchedulerName: "gpumem-scheduler", Containers: []v1.Container{{Name: "main", Image: "i", Resources: v1.ResourceRequirements{Limits: unit, Requests: unit}}}},
			}
			tc.change(pod)
			r := request{resource: "pods", is: pod, by: &user.DefaultInfo{Name: "someone"}}
			check(t, policy(t, "default", "gpumem-reserved-names"), r, tc.refused)
			for _, name := range []string{"annotations", "hold-annotations"} {
				check(t, policy(t, "default", "gpumem-"+name), r, "")
			}
		})
	}
}
