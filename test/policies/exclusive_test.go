package policies

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod may not have a GPU alone that its quota does not count, however it comes to say so.
func TestRefuseExclusive(t *testing.T) {
	const domain = "gpu.example.com/"
	const refused = domain + "policy: exclusive is not allowed in this cluster"
	pod := func(name, policy string) *v1.Pod {
		limits := v1.ResourceList{}
		if name != "" {
			limits[v1.ResourceName(domain+name)] = resource.MustParse("3")
		}
		out := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"},
			Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "side"}, {Name: "main", Resources: v1.ResourceRequirements{Limits: limits}}}},
		}
		if policy != "" {
			out.Annotations = map[string]string{domain + "policy": policy}
		}
		return out
	}
	inInit := pod("gpu-mem", "exclusive")
	inInit.Spec.InitContainers, inInit.Spec.Containers = inInit.Spec.Containers[1:], inInit.Spec.Containers[:1]
	p := policy(t, "custom", "shared-gpu-refuse-exclusive")
	for name, tc := range map[string]struct {
		was, is *v1.Pod
		want    string
	}{
		"created":                     {nil, pod("gpu-mem", "exclusive"), refused},
		"in an init container":        {nil, inInit, refused},
		"another policy":              {nil, pod("gpu-mem", "spread"), ""},
		"none":                        {nil, pod("gpu-mem", ""), ""},
		"shares":                      {nil, pod("gpu-share", "exclusive"), ""},
		"no GPU":                      {nil, pod("", "exclusive"), ""},
		"becomes so":                  {pod("gpu-mem", ""), pod("gpu-mem", "exclusive"), refused},
		"becomes so from another":     {pod("gpu-mem", "spread"), pod("gpu-mem", "exclusive"), refused},
		"was so before the policy":    {pod("gpu-mem", "exclusive"), pod("gpu-mem", "exclusive"), ""},
		"is so no more":               {pod("gpu-mem", "exclusive"), pod("gpu-mem", "binpack"), ""},
		"another change of one of it": {pod("gpu-mem", "spread"), pod("gpu-mem", "spread"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := request{resource: "pods", is: tc.is}
			if tc.was != nil {
				r.was = tc.was
			}
			check(t, p, r, tc.want)
		})
	}
}
