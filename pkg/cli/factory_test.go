package cli_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli"
	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func TestNamespaceOfFlag(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"none":    {nil, ""},
		"given":   {[]string{"-n", "ml"}, "ml"},
		"all win": {[]string{"-n", "ml", "-A"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := cmdutil.NewFactory(genericiooptions.NewTestIOStreamsDiscard(), "dev")
			if err := cli.NewCommand(f).ParseFlags(tc.args); err != nil {
				t.Fatal(err)
			}
			if got := f.Namespace(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// All commands count a nominated pod on the same GPU as the scheduler does. The cluster's policy determines this
// GPU.
func TestCommandsAskByTheClustersPolicy(t *testing.T) {
	a := kubetest.Inventory("gpu-a", 14, 14)
	there := kubetest.With(kubetest.Pod(t, "ml/there", "gpu-a", 4, a.Devices[1].UUID), kubetest.OwnedBy("ReplicaSet"))
	comes := kubetest.With(kubetest.Pod(t, "ml/comes", "", 3), func(p *v1.Pod) { p.Status.NominatedNodeName = "gpu-a" })
	objects := []runtime.Object{kubetest.Node(t, "gpu-a", a), there, comes, kubetest.Pod(t, "ml/waits", "", 12)}
	const kept = "needs 12 GiB on one GPU; free: GPU0 11, GPU1 10 (21 in all, fragmented); reserved for pods nominated to this node: 1"
	for _, tc := range []struct{ args, packed, spread string }{
		{"fit --mem 12", "Fits once in all.", kept},
		{"explain ml/waits", "its GPU memory fits on 1 of 1 node", kept},
		{"pods --waiting ml/waits", "its GPU memory fits on gpu-a", kept},
		{"defrag ml/waits", "No pod has to be evicted as it is", "there   ReplicaSet/owner   4 GiB   gpu-a   gpu-a\n"},
	} {
		for policy, want := range map[string]string{"binpack": tc.packed, "spread": tc.spread} {
			client := fake.NewClientset(append([]runtime.Object{clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", policy)}, objects...)...)
			stdout, stderr, err := clirun.Inspect(client, strings.Fields(tc.args)...)
			if said := stdout + fmt.Sprint(err); !strings.Contains(said, want) || stderr != "" {
				t.Errorf("%s, policy %s: want %q in:\n%s%s", tc.args, policy, want, said, stderr)
			}
		}
	}
}
