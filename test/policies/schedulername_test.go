package policies

import (
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
)

// The policy that writes the scheduler's name is about pods that ask for GPU memory and name
// neither a scheduler nor a node. It stops none, not even where it cannot be evaluated.
func TestSettingTheSchedulersNameStopsNoPod(t *testing.T) {
	var p admissionv1.MutatingAdmissionPolicy
	read(t, "custom", "MutatingAdmissionPolicy", "shared-gpu-scheduler-name", &p)
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	asking := v1.Container{Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"gpu.example.com/gpu-mem": resource.MustParse("1")}}}
	broken := admissionv1.MatchCondition{Name: "broken", Expression: "object.metadata.annotations['nowhere'] == ''"}
	for name, tc := range map[string]struct {
		spec v1.PodSpec
		want bool
		more []admissionv1.MatchCondition
	}{
		"asks":                      {v1.PodSpec{Containers: []v1.Container{asking}}, true, nil},
		"asks in an init container": {v1.PodSpec{Containers: []v1.Container{{Name: "main"}}, InitContainers: []v1.Container{asking}}, true, nil},
		"asks for none":             {v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}, false, nil},
		"names a scheduler":         {v1.PodSpec{Containers: []v1.Container{asking}, SchedulerName: "other"}, false, nil},
		"names its node":            {v1.PodSpec{Containers: []v1.Container{asking}, NodeName: "node1"}, false, nil},
		"cannot be looked at":       {v1.PodSpec{Containers: []v1.Container{asking}}, false, []admissionv1.MatchCondition{broken}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"}, Spec: tc.spec}
			r := request{resource: "pods", is: pod, by: &user.DefaultInfo{Name: "tenant"}}
			about := matcher(compiler, append(slices.Clone(p.Spec.MatchConditions), tc.more...), p.Spec.FailurePolicy, "mutate", p.Name)
			got := about.Match(t.Context(), r.versioned(t), nil, rights(r.by))
			if got.Error != nil {
				t.Errorf("the pod is stopped: %v", got.Error)
			}
			if got.Matches != tc.want {
				t.Errorf("the policy is about it: %v, want %v", got.Matches, tc.want)
			}
		})
	}
}
