package cli_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

// A pod requests a whole number of units, so fit prints that number if it differs from the flag.
func TestFitSaysHowAPodAsksForIt(t *testing.T) {
	small := kubetest.Inventory("gpu-b", 64)
	small.UnitMiB = 256
	client := fake.NewClientset(clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"), kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), kubetest.Node(t, "gpu-b", small), kubetest.Node(t, "gpu-c", kubetest.Inventory("gpu-c", 16)))
	note := func(amount, unit string) string {
		return "note: request this amount as gpumem.dev/gpu-mem: " + amount + ", a whole number of units of " + unit + "\n"
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--mem", "3", "gpu-a"}, ""},
		{[]string{"--mem", "3Gi", "gpu-a"}, note("3", "1 GiB")},
		{[]string{"--mem", "3.5", "gpu-a"}, note("4", "1 GiB")},
		{[]string{"--mem", "512Mi", "gpu-a", "gpu-c"}, note("1", "1 GiB")},
		{[]string{"--mem", "10", "--count", "3", "gpu-a"}, note("12", "1 GiB")},
		{[]string{"--gpu-mem", "10", "--gpu-count", "3", "--gpu-model", "A100*", "--gpu-core", "3", "gpu-a"}, note("12", "1 GiB")},
		{[]string{"--mem", "3"}, note("12", "256 MiB")},
	} {
		if _, stderr, _ := clirun.Inspect(client, append([]string{"fit"}, tc.args...)...); stderr != tc.want {
			t.Errorf("%q: want %q, got %q", tc.args, tc.want, stderr)
		}
	}
}

// An error in the flags is one sentence.
func TestFlagsOfFit(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)))
	for want, args := range map[string][]string{
		"set either --mem SIZE or --share N": {"--cores", "3"}, "--count is 0, want a number of GPUs from 1": {"--mem", "3", "--count", "0"},
	} {
		if _, _, err := clirun.Inspect(client, append([]string{"fit"}, args...)...); err == nil || err.Error() != want {
			t.Errorf("%q: error %v, want %q", args, err, want)
		}
	}
}

// fit checks quotas also for a user who may list all nodes.
func TestFitSaysWhatTheQuotasLeave(t *testing.T) {
	quota := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "gpus"}, Status: v1.ResourceQuotaStatus{
		Hard: v1.ResourceList{"requests.gpumem.dev/gpu-mem": resource.MustParse("12")},
	}}
	scoped := quota.DeepCopy() // limits only some pods
	scoped.Name, scoped.Spec.Scopes = "scoped", []v1.ResourceQuotaScope{v1.ResourceQuotaScopeBestEffort}
	scoped.Status.Hard = v1.ResourceList{"requests.gpumem.dev/gpu-mem": resource.MustParse("1")}
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), quota, scoped)
	for _, tc := range []struct{ size, total, err string }{
		{"12", "Fits once in all.\n", ""},
		{"13", "Fits 0 times in all. The nodes have space for 1.\n", "the pod exceeds ResourceQuota gpus"},
		{"5", "Fits 2 times in all. The nodes have space for 3.\n", ""},
	} {
		stdout, _, err := clirun.Inspect(client, "fit", "-n", "ml", "--mem", tc.size)
		want := "\n\nResourceQuota ml/gpus leaves 12 of 12 requests.gpumem.dev/gpu-mem\n" + tc.total
		if !strings.HasSuffix(stdout, want) || (err == nil) != (tc.err == "") || err != nil && err.Error() != tc.err {
			t.Errorf("%s GiB: error %v, want %q; want at the end %q, printed:\n%s", tc.size, err, tc.err, want, stdout)
		}
	}
}

func TestFitLeavesOutNodesThatTakeNone(t *testing.T) {
	names := kubetest.Names(t)
	a, b := kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), kubetest.Node(t, "gpu-b", kubetest.Inventory("gpu-b", 16))
	a.Status.Allocatable[names.GPUMem()] = resource.MustParse("0")
	client := fake.NewClientset(a, b)
	for want, args := range map[string][]string{
		"gpu-a  0      its kubelet offers no gpumem.dev/gpu-mem: see kubectl inspect gpumem doctor\ngpu-b  1      <none>\n\nFits once in all.": {"--mem", "12"},
		"gpu-b  0      the node offers no gpumem.dev/gpu-core\n":                                                                               {"--mem", "12", "--cores", "30"},
	} {
		if stdout, _, _ := clirun.Inspect(client, append([]string{"fit"}, args...)...); !strings.Contains(stdout, want) {
			t.Errorf("%v: want\n%sgot\n%s", args, want, stdout)
		}
	}
	if stdout, _, err := clirun.Inspect(client, "fit", "--mem", "12", "-o", "name"); stdout != "node/gpu-b\n" || err != nil {
		t.Errorf("the names of the nodes where it fits, error %v:\n%s", err, stdout)
	}
	if stdout, _, err := clirun.Inspect(client, "fit", "--mem", "99", "-o", "name"); stdout != "" || err == nil || err.Error() != "the pod fits on no node" {
		t.Errorf("the names where the pod fits on no node, error %v:\n%s", err, stdout)
	}
}

// fit evaluates each node in the resource that the node offers: memory or shares.
func TestFitInShares(t *testing.T) {
	sharing := kubetest.Inventory("gpu-b", 10, 10)
	sharing.UnitMiB = 0
	for i := range sharing.Devices {
		sharing.Devices[i].ShareMiB, sharing.Devices[i].MemoryMiB = 1400, 15360
	}
	b := kubetest.Node(t, "gpu-b", sharing)
	b.Status.Allocatable = v1.ResourceList{kubetest.Names(t).GPUShares(): resource.MustParse("20")}
	client := fake.NewClientset(clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"), kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), b)
	for want, args := range map[string][]string{
		"gpu-a  0      asks for shares of GPUs (gpu-share); this node offers amounts of GPU memory (gpu-mem)\ngpu-b  6      <none>\n\nFits 6 times in all.": {"--share", "3"},
		"gpu-a  1      <none>\ngpu-b  0      asks for amounts of GPU memory (gpu-mem); this node offers shares of GPUs (gpu-share)\n":                       {"--mem", "12"},
		"gpu-b  0      needs 11 shares on one GPU; the largest that qualifies here has 10 shares: ask for less, or for more GPUs\n":                         {"--share", "11"},
		"gpu-b  1      <none>\n": {"--share", "20", "--count", "2"},
	} {
		if stdout, stderr, _ := clirun.Inspect(client, append([]string{"fit"}, args...)...); !strings.Contains(stdout, want) || stderr != "" && args[0] == "--share" && args[1] == "3" {
			t.Errorf("%v: want\n%sgot\n%s%s", args, want, stdout, stderr)
		}
	}
	for _, args := range [][]string{{}, {"--share", "3", "--mem", "3"}, {"--share", "0"}, {"--mem", "1e400"}, {"--mem", "-1e400"}} {
		if _, _, err := clirun.Inspect(client, append([]string{"fit"}, args...)...); err == nil {
			t.Errorf("%v: taken", args)
		}
	}
}
