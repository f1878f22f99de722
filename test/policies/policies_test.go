package policies

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/test/helm"
)

// policy returns a policy that the chart makes with a file of ci/, compiled.
func policy(t *testing.T, values, name string) validating.Validator {
	t.Helper()
	declare.Do(func() { declareAll(t) })
	p := read[admissionv1.ValidatingAdmissionPolicy](t, values, "ValidatingAdmissionPolicy", name)
	return observed{compile(t, &p), &p}
}

// read parses the object of that kind and name that the chart makes with a file of ci/.
func read[T any](t *testing.T, values, kind, name string) T {
	t.Helper()
	objects := readAll[T](t, values, kind, name)
	if len(objects) == 0 {
		t.Fatalf("%s-values.yaml makes no %s %s", values, kind, name)
	}
	return objects[0]
}

// readAll parses the objects of that kind that the chart makes with a file of ci/. An empty name selects all of them.
func readAll[T any](t *testing.T, values, kind, name string) (out []T) {
	t.Helper()
	for document := range strings.SplitSeq(helm.Values(t, values), "\n---\n") {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &object); err != nil || object.Kind != kind || name != "" && object.Name != name {
			continue
		}
		var parsed T
		if err := yaml.Unmarshal([]byte(document), &parsed); err != nil {
			t.Fatal(err)
		}
		out = append(out, parsed)
	}
	return out
}

// compile is what the API server does with a policy.
func compile(t *testing.T, p *admissionv1.ValidatingAdmissionPolicy) validating.Validator {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	variables := make([]cel.NamedExpressionAccessor, len(p.Spec.Variables))
	for i, v := range p.Spec.Variables {
		variables[i] = &validating.Variable{Name: v.Name, Expression: v.Expression}
	}
	allowed := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	compiler.CompileAndStoreVariables(variables, allowed, environment.StoredExpressions)
	conditions, messages := make([]cel.ExpressionAccessor, len(p.Spec.Validations)), make([]cel.ExpressionAccessor, len(p.Spec.Validations))
	for i, v := range p.Spec.Validations {
		conditions[i] = &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason}
		if v.MessageExpression != "" {
			messages[i] = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
	}
	fail := p.Spec.FailurePolicy
	return validating.NewValidator(
		compiler.CompileCondition(conditions, allowed, environment.StoredExpressions),
		matcher(compiler, p.Spec.MatchConditions, fail, "validate", p.Name),
		compiler.CompileCondition(nil, allowed, environment.StoredExpressions),
		compiler.CompileCondition(messages, cel.OptionalVariableDeclarations{}, environment.StoredExpressions),
		fail, nil,
	)
}

// matcher is what the API server asks whether a policy is about a request.
func matcher(compiler cel.ConditionCompiler, of []admissionv1.MatchCondition, fail *admissionv1.FailurePolicyType, kind, name string) matchconditions.Matcher {
	expressions := make([]cel.ExpressionAccessor, len(of))
	for i := range of {
		expressions[i] = (*matchconditions.MatchCondition)(&of[i])
	}
	conditions := compiler.CompileCondition(expressions, cel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.StoredExpressions)
	return matchconditions.NewMatcher(conditions, fail, "policy", kind, name)
}

// A request is what the API server is asked to store.
type request struct {
	resource, subresource string
	was, is               runtime.Object // was: nil where it is created
	by                    user.Info
}

// versioned is the request as the API server shows it to policies.
func (r request) versioned(t *testing.T) *admission.VersionedAttributes {
	t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(r.is)
	if err != nil {
		t.Fatal(err)
	}
	meta, ok := r.is.(metav1.Object)
	if !ok {
		t.Fatalf("%T has no name", r.is)
	}
	operation := admission.Create
	if r.was != nil {
		operation = admission.Update
	}
	attributes := admission.NewAttributesRecord(r.is, r.was, kinds[0], meta.GetNamespace(), meta.GetName(),
		v1.SchemeGroupVersion.WithResource(r.resource), r.subresource, operation, nil, false, r.by)
	return &admission.VersionedAttributes{Attributes: attributes, VersionedKind: kinds[0], VersionedObject: r.is, VersionedOldObject: r.was}
}

// refusal returns what a policy says against a request; nothing: it lets it pass.
func refusal(t *testing.T, p validating.Validator, r request) string {
	t.Helper()
	result := p.Validate(t.Context(), schema.GroupVersionResource{Version: "v1", Resource: r.resource}, r.versioned(t), nil, nil, celconfig.RuntimeCELCostBudget, rights(r.by))
	var said []string
	for _, d := range result.Decisions {
		if d.Evaluation == validating.EvalError {
			t.Errorf("cannot be evaluated: %s", d.Message)
		}
		if d.Action == validating.ActionDeny {
			said = append(said, cmp.Or(d.Message, "no"))
		}
	}
	return strings.Join(said, "; ")
}

// cluster is the group of those who may patch the status of pods in all namespaces.
const cluster = "cluster"

// rights knows that group alone, and what it may do.
func rights(of user.Info) authorizer.AuthorizerFunc {
	return func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if slices.Contains(of.GetGroups(), cluster) && a.GetVerb() == "patch" && a.GetAPIGroup() == "" && a.GetResource() == "pods" && a.GetSubresource() == "status" && a.GetNamespace() == "" {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	}
}

func check(t *testing.T, p validating.Validator, r request, want string) {
	t.Helper()
	if got := refusal(t, p, r); want == "" && got != "" || !strings.Contains(got, want) {
		t.Errorf("the policy says %q, want %q", got, want)
	}
}

// What pkg/kube/api reads, the policy lets pass, and nothing else.
func TestAnnotations(t *testing.T) {
	text, err := os.ReadFile("../../pkg/kube/api/testdata/annotations.json")
	if err != nil {
		t.Fatal(err)
	}
	var table map[string]struct {
		Want           string
		Taken, Refused []string
	}
	if err := json.Unmarshal(text, &table); err != nil {
		t.Fatal(err)
	}
	p := policy(t, "default", "gpumem-annotations")
	ask := func(key, value, want string) {
		t.Helper()
		check(t, p, request{resource: "pods", is: &v1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", Annotations: map[string]string{"gpumem.dev/" + key: value}},
			Spec: v1.PodSpec{Containers: []v1.Container{{
				Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("64")}},
			}}},
		}}, want)
	}
	for key, tc := range table {
		for _, value := range tc.Taken {
			ask(key, value, "")
		}
		for _, value := range tc.Refused {
			ask(key, value, "want "+tc.Want)
		}
	}
	const tooMuch = "32 of them and 1024 bytes at most"
	for value, want := range map[string]string{
		strings.Repeat("x", 1024): "", strings.Repeat("x", 1025): tooMuch, strings.Repeat("x,", 31) + "x": "", strings.Repeat("x,", 32) + "x": tooMuch,
	} {
		ask("gpu-uuid", value, want)
	}
}
