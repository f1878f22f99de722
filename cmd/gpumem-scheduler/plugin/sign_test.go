package plugin

import (
	"encoding/json"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// asking returns a request that differs from other in one field.
func asking(t *testing.T, field int, other placement.Request) placement.Request {
	t.Helper()
	switch value := reflect.ValueOf(&other).Elem().Field(field); value.Interface().(type) {
	case placement.Containers:
		other.Containers = placement.NewContainers(placement.Container{Kind: placement.App, Units: 4})
	case placement.Group:
		value.Set(reflect.ValueOf(placement.Group{Namespace: "team", Name: "group"}))
	default:
		switch value.Kind() {
		case reflect.String:
			value.SetString("other")
		case reflect.Bool:
			value.SetBool(true)
		default:
			value.SetInt(7)
		}
	}
	return other
}

// kube-scheduler reuses the result of the previous pod if both pods have the same signature, compared as
// JSON.
func TestASignatureHasAllThatIsAskedFor(t *testing.T) {
	signed := func(r placement.Request) string {
		text, err := json.Marshal(signatureOf(r))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	plain := placement.Request{Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: 3})}
	for i := range reflect.TypeFor[placement.Request]().NumField() {
		if other := asking(t, i, plain); signed(other) == signed(plain) {
			t.Errorf("another %s, and the same signature: %s", reflect.TypeFor[placement.Request]().Field(i).Name, signed(plain))
		}
	}
}

func TestSignPod(t *testing.T) {
	names, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	p := &Plugin{decider: &decider.Decider{Binder: &binder.Binder{Names: names}}}
	sign := func(units, policy string) (string, bool) {
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{
			Resources: v1.ResourceRequirements{Limits: v1.ResourceList{names.GPUMem(): resource.MustParse(units)}},
		}}}}
		pod.Annotations = map[string]string{names.Policy(): policy}
		fragments, status := p.SignPod(t.Context(), pod)
		text, err := json.Marshal(fragments)
		if err != nil {
			t.Fatal(err)
		}
		return string(text), status.IsSuccess()
	}
	packs, signed := sign("3", "binpack")
	if spreads, _ := sign("3", "spread"); !signed || spreads == packs {
		t.Errorf("signed: %t; two policies have the signatures %s and %s", signed, packs, spreads)
	}
	if again, _ := sign("3", "binpack"); again != packs {
		t.Errorf("two pods that ask for the same have the signatures %s and %s", packs, again)
	}
	if _, signed := sign("3", "?"); signed {
		t.Error("a pod that cannot be read is signed")
	}
	if none, signed := sign("0", "binpack"); none != "null" || !signed {
		t.Errorf("signed: %t; a pod without GPU memory has the signature %s", signed, none)
	}
}
