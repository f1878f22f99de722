package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/doctor"
)

func TestDoctor(t *testing.T) {
	client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16)), makePod(t, "ml/lost", "gpu-a", 2))
	client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1.Resource("configmaps"), "", errors.New("not for you"))
	})
	stdout, _, err := inspectWith(client, "doctor")
	for _, want := range []string{
		"error   cluster: no device plugin for gpumem.dev is installed\n        helm install gpumem",
		"error   cluster: no extender for gpumem.dev is installed",
		"error   pod ml/lost: is on node gpu-a and has no valid assignment",
		"warning configmaps: cannot be read: configmaps is forbidden: not for you",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("not a word of %q in:\n%s", want, stdout)
		}
	}
	if err == nil || err.Error() != "3 of 4 findings are errors" {
		t.Errorf("error %v", err)
	}

	stdout, _, _ = inspectWith(client, "doctor", "-o", "json")
	var found []doctor.Finding
	if err := json.Unmarshal([]byte(stdout), &found); err != nil || len(found) != 4 || found[0].Severity != doctor.Error {
		t.Errorf("%v, %+v in:\n%s", err, found, stdout)
	}
	if _, _, err := inspectWith(client, "doctor", "-o", "wide"); err == nil || !strings.Contains(err.Error(), "want json or nothing") {
		t.Errorf("error %v", err)
	}
	for _, a := range client.Actions() {
		if verb := a.GetVerb(); verb != "get" && verb != "list" {
			t.Errorf("the command did %s %s", verb, a.GetResource())
		}
	}
}
