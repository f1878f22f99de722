package policies

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
)

// TestWarningsAboutSchedulers evaluates the warnings about a pod's scheduler. The API server
// validates a pod after it has set the name, so a pod without a name is one that it did not change.
func TestWarningsAboutSchedulers(t *testing.T) {
	const (
		unset    = "gpumem.dev/gpu-mem without schedulerName gpumem-scheduler"
		misspelt = "no scheduler of gpumem has the name gpumem-schedular: did you mean gpumem-scheduler?"
	)
	asking := []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("1")}}}}
	for golden, unsetInTemplate := range map[string]string{"default": "", "extender": unset} { // admission.setSchedulerName is on, off
		p := policy(t, golden, "gpumem-names")
		for name, tc := range map[string]struct {
			spec          v1.PodSpec
			pod, template string
		}{
			"gpumem's":     {v1.PodSpec{Containers: asking, SchedulerName: "gpumem-scheduler"}, "", ""},
			"no scheduler": {v1.PodSpec{Containers: asking}, unset, unsetInTemplate},
			"the default":  {v1.PodSpec{Containers: asking, SchedulerName: v1.DefaultSchedulerName}, unset, unsetInTemplate},
			"another":      {v1.PodSpec{Containers: asking, SchedulerName: "volcano"}, "", ""},
			"misspelt":     {v1.PodSpec{Containers: asking, SchedulerName: "gpumem-schedular"}, misspelt, misspelt},
			"a node":       {v1.PodSpec{Containers: asking, NodeName: "node1"}, "", ""},
			"no request":   {v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}, "", ""},
		} {
			t.Run(golden+" "+name, func(t *testing.T) {
				check(t, p, request{resource: "pods", is: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"}, Spec: tc.spec}}, tc.pod)
				check(t, p, request{resource: "deployments", is: &appsv1.Deployment{
					ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "d"},
					Spec:       appsv1.DeploymentSpec{Template: v1.PodTemplateSpec{Spec: tc.spec}},
				}}, tc.template)
			})
		}
	}
}

// The policy and pkg/kube/api find the same name for a misspelt one.
func TestDidYouMean(t *testing.T) {
	text, err := os.ReadFile("../../pkg/kube/api/testdata/meant.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string]string
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	p := policy(t, "default", "gpumem-names")
	for misspelt, meant := range cases {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", Annotations: map[string]string{"gpumem.dev/" + misspelt: "1"}}}
		pod.Spec.Containers = []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("1")}}}}
		pod.Spec.SchedulerName = "gpumem-scheduler"
		said := refusal(t, p, request{resource: "pods", is: pod})
		if want := "did you mean gpumem.dev/" + meant + "?"; meant != "" && !strings.HasSuffix(said, want) || meant == "" && !strings.HasSuffix(said, "has no effect") {
			t.Errorf("%s: %q, want %q", misspelt, said, meant)
		}
	}
}

func TestAnnotationsBesideTheTemplate(t *testing.T) {
	p := policy(t, "default", "gpumem-names")
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "d", Annotations: map[string]string{"gpumem.dev/gpu-count": "2"}}}
	deployment.Spec.Template.Spec.Containers = []v1.Container{{Name: "main"}}
	check(t, p, request{resource: "deployments", is: deployment}, "annotation gpumem.dev/gpu-count has no effect here: move it to the metadata of the template")
	deployment.Annotations = map[string]string{"example.com/note": "n"}
	deployment.Spec.Template.Annotations = map[string]string{"example.com/note": "n"}
	check(t, p, request{resource: "deployments", is: deployment}, "")
}

// TestWarningsAboutSmallGrants: a CUDA context can take all of them.
func TestWarningsAboutSmallGrants(t *testing.T) {
	const small = "a container asks for 512 MiB of GPU memory or less"
	for golden, grants := range map[string]map[string]string{
		"units256": {"1": small, "2": small, "3": "", "0": ""},
		"default":  {"1": ""},
	} {
		p := policy(t, golden, "gpumem-names")
		for amount, want := range grants {
			spec := v1.PodSpec{SchedulerName: "gpumem-scheduler", Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{
				Limits: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse(amount)},
			}}}}
			t.Run(golden+" "+amount, func(t *testing.T) {
				check(t, p, request{resource: "pods", is: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"}, Spec: spec}}, want)
			})
		}
	}
}

// The policy that writes the scheduler's name is about pods that ask for GPU memory and name
// neither a scheduler nor a node. It stops none, not even where it cannot be evaluated.
func TestSettingTheSchedulersNameStopsNoPod(t *testing.T) {
	p := read[admissionv1.MutatingAdmissionPolicy](t, "custom", "MutatingAdmissionPolicy", "shared-gpu-scheduler-name")
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

// The API server fills these fields in. A GitOps tool would find a policy that lacks one
// different from its manifest.
func TestSchedulerNamePolicyHasTheDefaults(t *testing.T) {
	p := read[admissionv1.MutatingAdmissionPolicy](t, "default", "MutatingAdmissionPolicy", "gpumem-scheduler-name")
	match := p.Spec.MatchConstraints
	if match.MatchPolicy == nil || *match.MatchPolicy != admissionv1.Equivalent {
		t.Errorf("matchPolicy is %v, want Equivalent", match.MatchPolicy)
	}
	if match.NamespaceSelector == nil || match.ObjectSelector == nil {
		t.Errorf("namespaceSelector is %v, objectSelector is %v, want both", match.NamespaceSelector, match.ObjectSelector)
	}
	for _, rule := range match.ResourceRules {
		if rule.Scope == nil || *rule.Scope != admissionv1.AllScopes {
			t.Errorf("scope is %v, want *", rule.Scope)
		}
	}
}

// TestWarningsAboutRequestsThatNeverFit: an amount that gpu-count does not divide, and one that was meant in MiB.
func TestWarningsAboutRequestsThatNeverFit(t *testing.T) {
	for name, tc := range map[string]struct {
		amount, count, want string
	}{
		"uneven":         {"3", "2", "container main asks for 3 of gpumem.dev/gpu-mem, which does not divide evenly over the 2 GPUs of the annotation gpumem.dev/gpu-count: the pod stays Pending; ask for a multiple of 2"},
		"even":           {"4", "2", ""},
		"in MiB":         {"3072", "", "container main: gpumem.dev/gpu-mem is 3072, more than any GPU has: the unit is 1 GiB; if MiB were meant, ask for 3"},
		"of several":     {"1536", "8", ""},
		"a whole number": {"3", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"}, Spec: v1.PodSpec{SchedulerName: "gpumem-scheduler", Containers: []v1.Container{{Name: "main"}}}}
			pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse(tc.amount)}
			if tc.count != "" {
				pod.Annotations = map[string]string{"gpumem.dev/gpu-count": tc.count}
			}
			check(t, policy(t, "default", "gpumem-names"), request{resource: "pods", is: pod}, tc.want)
		})
	}
}

// A container that sets a framework's variable by its second name meets gpumem's variable for the same setting.
func TestWarningsAboutSecondNames(t *testing.T) {
	const jax = "container main sets XLA_CLIENT_MEM_FRACTION: gpumem omits its own variable, XLA_PYTHON_CLIENT_MEM_FRACTION, and JAX has the limit of the pod alone"
	const torch = "container main sets PYTORCH_CUDA_ALLOC_CONF: gpumem adds its fraction in the newer name, PYTORCH_ALLOC_CONF, which some releases of PyTorch ignore"
	for variable, want := range map[string]string{
		"XLA_CLIENT_MEM_FRACTION":        jax,
		"PYTORCH_CUDA_ALLOC_CONF":        torch,
		"XLA_PYTHON_CLIENT_MEM_FRACTION": "",
		"PYTORCH_ALLOC_CONF":             "",
	} {
		main := v1.Container{Name: "main", Env: []v1.EnvVar{{Name: "A", Value: "b"}, {Name: variable, Value: "c"}}}
		main.Resources.Limits = v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("3")}
		spec := v1.PodSpec{SchedulerName: "gpumem-scheduler", Containers: []v1.Container{{Name: "aside", Env: main.Env}, main}}
		check(t, policy(t, "default", "gpumem-names"), request{resource: "pods", is: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"}, Spec: spec}}, want)
		template := v1.PodTemplateSpec{Spec: spec}
		check(t, policy(t, "default", "gpumem-names"), request{resource: "deployments", is: &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "d"}, Spec: appsv1.DeploymentSpec{Template: template},
		}}, want)
	}
}
