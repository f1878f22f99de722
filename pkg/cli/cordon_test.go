package cli_test

import (
	"errors"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cordon"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func TestCordonAndUncordon(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 80)), kubetest.Node(t, "gpu-b", kubetest.Inventory("gpu-b", 16)))
	for _, tc := range []struct {
		args         []string
		says, listed string
	}{
		{[]string{"cordon", "gpu-a", "1"}, "gpu/gpu-a/1 cordoned\n", "GPU-gpu-a-1"},
		{[]string{"cordon", "gpu-a", "1"}, "gpu/gpu-a/1 was cordoned already\n", "GPU-gpu-a-1"},
		{[]string{"cordon", "node/gpu-a", "GPU-gpu-a-0"}, "gpu/gpu-a/0 cordoned\n", "GPU-gpu-a-1,GPU-gpu-a-0"},
		{[]string{"uncordon", "gpu-a", "1"}, "gpu/gpu-a/1 uncordoned\n", "GPU-gpu-a-0"},
		{[]string{"uncordon", "gpu-a", "0"}, "gpu/gpu-a/0 uncordoned\n", ""},
		{[]string{"uncordon", "gpu-a", "0"}, "gpu/gpu-a/0 was not cordoned\n", ""},
		{[]string{"cordon", "gpu-b", "GPU-gpu-b"}, "gpu/gpu-b/0 cordoned\n", ""},
	} {
		stdout, _, err := clirun.Inspect(client, tc.args...)
		if err != nil || stdout != tc.says || clitest.CordonedOn(t, client, "gpu-a") != tc.listed {
			t.Errorf("%v: %v, %q, listed %q; want %q, %q", tc.args, err, stdout, clitest.CordonedOn(t, client, "gpu-a"), tc.says, tc.listed)
		}
	}
	if _, _, err := clirun.Inspect(client, "cordon", "gpu-a", "0"); err != nil {
		t.Fatal(err)
	}
	if stdout, _, err := clirun.Inspect(client, "gpus"); err != nil || !strings.Contains(stdout, " Cordoned\n") {
		t.Errorf("%v\n%s", err, stdout)
	}
}

// If the state after a conflict cannot be read, cordon reports no change, because the cordon may be
// another user's.
func TestACordonOfAnotherIsNoChange(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)))
	gets := 0
	client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		gets++
		return gets > 1, nil, errors.New("away")
	})
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "gpu-a", errors.New("written by another"))
	})
	r := &cluster.Reader{Client: client, Names: kubetest.Names(t)}
	if _, changed, err := cordon.WriteCordon(t.Context(), r, "gpu-a", "0", true, ""); err == nil || changed {
		t.Errorf("error %v, changed: %t", err, changed)
	}
}

// logIn makes the API server report a user name, or an error.
func logIn(client *fake.Clientset, name string, err error) {
	client.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: name}}}, err
	})
}

// A cordon records its author and reason, and other commands show both.
func TestWhoCordonedAGPU(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 80, 80)), kubetest.Pod(t, "ml/waits", "", 40))
	reasons := func() string {
		t.Helper()
		node, err := client.CoreV1().Nodes().Get(t.Context(), "gpu-a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return node.Annotations["gpumem.dev/cordon-reasons"]
	}
	for _, tc := range []struct {
		who    string
		err    error
		args   []string
		listed string // cordoned GPUs, in the form of gpumem 0.1
		want   string
	}{
		{"alice", nil, []string{"cordon", "gpu-a", "1", "--reason", "its fan is loud"}, "GPU-gpu-a-1", `{"GPU-gpu-a-1":{"by":"alice","reason":"its fan is loud"}}`},
		{"bob", nil, []string{"cordon", "gpu-a", "1", "--reason", "no"}, "GPU-gpu-a-1", `{"GPU-gpu-a-1":{"by":"alice","reason":"its fan is loud"}}`},
		{"bob", nil, []string{"cordon", "gpu-a", "2"}, "GPU-gpu-a-1,GPU-gpu-a-2", `{"GPU-gpu-a-1":{"by":"alice","reason":"its fan is loud"},"GPU-gpu-a-2":{"by":"bob"}}`},
		{"", errors.New("forbidden"), []string{"cordon", "gpu-a", "0"}, "GPU-gpu-a-1,GPU-gpu-a-2,GPU-gpu-a-0", `{"GPU-gpu-a-1":{"by":"alice","reason":"its fan is loud"},"GPU-gpu-a-2":{"by":"bob"}}`},
		{"eve", nil, []string{"uncordon", "gpu-a/0", "gpu-a/2"}, "GPU-gpu-a-1", `{"GPU-gpu-a-1":{"by":"alice","reason":"its fan is loud"}}`},
	} {
		logIn(client, tc.who, tc.err)
		if _, _, err := clirun.Inspect(client, tc.args...); err != nil || clitest.CordonedOn(t, client, "gpu-a") != tc.listed || reasons() != tc.want {
			t.Errorf("%v: %v, %s, %s; want %s, %s", tc.args, err, clitest.CordonedOn(t, client, "gpu-a"), reasons(), tc.listed, tc.want)
		}
	}
	for view, want := range map[string]string{
		"gpus": " Cordoned by alice (its fan is loud)\n", "explain ml/waits --all": "cordoned by alice (its fan is loud)",
		"--details":                           "GPU1 is cordoned by alice (its fan is loud) and takes no new pods until it is uncordoned",
		"gpus -o jsonpath={.items[*].cordon}": "by alice (its fan is loud)",
	} {
		if stdout, _, _ := clirun.Inspect(client, strings.Fields(view)...); !strings.Contains(stdout, want) {
			t.Errorf("%s: want %q in:\n%s", view, want, stdout)
		}
	}
	if _, _, err := clirun.Inspect(client, "uncordon", "gpu-a", "1"); err != nil || reasons() != "" {
		t.Errorf("%v, %q is left of the last cordon", err, reasons())
	}
	if _, _, err := clirun.Inspect(client, "cordon", "gpu-a", "1", "--reason", strings.Repeat("x", 257)); err == nil || !strings.Contains(err.Error(), "--reason has 257 bytes, at most 256 are allowed") {
		t.Errorf("error %v", err)
	}
}
