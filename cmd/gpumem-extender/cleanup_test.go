package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func TestCleanup(t *testing.T) {
	names := kubetest.Names(t)
	node := func(name string, annotations map[string]string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	}
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "gpumem-system", Name: name}}
	}
	failed := node("failed", nil)
	failed.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}, {Type: api.GPUsHealthy, Status: v1.ConditionFalse}}
	client := fake.NewClientset(
		failed,
		node("gpu-a", map[string]string{names.Inventory(): "{}", "example.com/note": "stays"}),
		node("gpu-b", map[string]string{names.Inventory(): "{}"}),
		node("refused", map[string]string{names.Inventory(): "{}"}),
		node("other", map[string]string{"gpumem.dev.example.com/inventory": "stays"}),
		lease("gpumem-scheduler"), lease("other"),
	)
	patched := map[string]string{}
	client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		if patch.GetName() == "refused" {
			return true, nil, apierrors.NewInternalError(errors.New("not now"))
		}
		patched[patch.GetName()+"/"+patch.GetSubresource()] = string(patch.GetPatch())
		return true, &v1.Node{}, nil
	})
	opts := options{leases: []string{"gpumem-system/gpumem-scheduler", "gpumem-system/never-was"}}
	opts.Names = names
	err := cleanup(t.Context(), zaptest.NewLogger(t), &opts, client)
	if err == nil || !strings.Contains(err.Error(), "node refused: ") || strings.Contains(err.Error(), "never-was") {
		t.Errorf("error %v, want it to tell of one node alone", err)
	}
	const patch = `{"metadata":{"annotations":{"gpumem.dev/inventory":null}}}`
	want := map[string]string{
		"gpu-a/": patch, "gpu-b/": patch,
		"failed/status": `{"status":{"conditions":[{"$patch":"delete","type":"GPUMemoryHealthy"}]}}`,
	}
	if diff := cmp.Diff(want, patched); diff != "" {
		t.Errorf("patched (-want +got):\n%s", diff)
	}
	left, err := client.CoordinationV1().Leases("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 1 || left.Items[0].Name != "other" {
		t.Errorf("leases left: %v, %v", left, err)
	}
}

func TestCleanupTellsMistakes(t *testing.T) {
	for want, args := range map[string][]string{
		"unexpected arguments": {"cleanup", "now"},
		"--resource-domain":    {"cleanup", "--resource-domain=Not A Domain"},
		"unknown flag":         {"cleanup", "--listen=127.0.0.1:1"},
	} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
