package policies

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// declared has the validations of the default chart, and refusing those that refused a request in a test. The keys are
// POLICY/INDEX without the release's name.
var declared, refusing sync.Map

func validation(policy string, index int) string {
	return fmt.Sprintf("%s/%d", strings.TrimPrefix(strings.TrimPrefix(policy, "gpumem-"), "shared-gpu-"), index)
}

// observed records the validations of a policy that refuse a request.
type observed struct {
	validating.Validator
	policy *admissionv1.ValidatingAdmissionPolicy
}

func (o observed) Validate(ctx context.Context, resource schema.GroupVersionResource, attributes *admission.VersionedAttributes, params runtime.Object, namespace *v1.Namespace, budget int64, a authorizer.Authorizer) validating.ValidateResult {
	result := o.Validator.Validate(ctx, resource, attributes, params, namespace, budget, a)
	if len(result.Decisions) == len(o.policy.Spec.Validations) {
		for i, d := range result.Decisions {
			if d.Action == validating.ActionDeny {
				refusing.Store(validation(o.policy.Name, i), true)
			}
		}
	}
	return result
}

// TestMain runs the tests, and after all of them requires that each validation of the default chart refused a request.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if code == 0 && flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.list").Value.String() == "" {
		code = reportUntested()
	}
	os.Exit(code)
}

func reportUntested() (code int) {
	declared.Range(func(name, expression any) bool {
		if _, ok := refusing.Load(name); !ok {
			fmt.Fprintf(os.Stderr, "no test has a request that a policy refuses by its validation %s: %s\n", name, expression)
			code = 1
		}
		return true
	})
	return code
}

// declare records the validations of all policies of the default chart.
var declare sync.Once

func declareAll(t *testing.T) {
	for _, p := range readAll[admissionv1.ValidatingAdmissionPolicy](t, "default", "ValidatingAdmissionPolicy", "") {
		for i, v := range p.Spec.Validations {
			declared.Store(validation(p.Name, i), strings.TrimSpace(v.Expression))
		}
	}
}
