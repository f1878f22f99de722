package cli_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

// Nodes with the same trouble, such as the nodes of a failed rack, share one row. The list omits healthy nodes.
func TestTrouble(t *testing.T) {
	objects := []runtime.Object{clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack")}
	for i := range 30 {
		name := fmt.Sprintf("gpu-%02d", i)
		node := kubetest.Node(t, name, kubetest.Inventory(name, 80, 80))
		switch {
		case i < 24:
			node.Status.Conditions[0].Status = v1.ConditionUnknown
		case i == 24:
			clitest.Sicken(t, node, 1)
		}
		objects = append(objects, node)
	}
	objects = append(objects, kubetest.Pod(t, "ml/train", "gpu-03", 10, kubetest.UUID("gpu-03", 0)))
	for line, want := range map[string]string{
		"": "NODES  NAMES                     GPU-MEMORY(GiB)  TROUBLE\n" +
			"24     gpu-00,gpu-01,gpu-02 +21  10/3840          the node is NotReady\n" +
			"1      gpu-24                    0/160            GPU1: XID 79\n",
		"gpu-24 -o wide":         "NODES  NAMES   GPU-MEMORY(GiB)  TROUBLE\n1      gpu-24  0/160            GPU1: XID 79\n",
		"-o name -l name=gpu-24": "node/gpu-24\n",
		"-o jsonpath={.total}":   `{"capacityMiB":4096000,"requestedMiB":10240}`,
		"gpu-25":                 "",
	} {
		args := append([]string{"--trouble"}, strings.Fields(line)...)
		stdout, stderr, err := clirun.Inspect(fake.NewClientset(objects...), args...)
		if diff := cmp.Diff(want, stdout); err != nil || diff != "" {
			t.Errorf("%s: error %v (-want +got):\n%s", line, err, diff)
		}
		if quiet := want == ""; quiet != (stderr == "No node has trouble\n") {
			t.Errorf("%s: stderr %q", line, stderr)
		}
	}
	stdout, _, err := clirun.Inspect(fake.NewClientset(objects...), "--sort-by=.requested.MiB", "-o", "jsonpath={.nodes[29].name}")
	if err != nil || stdout != "gpu-03" {
		t.Errorf("error %v, the node of which most is allocated is last, got %q", err, stdout)
	}
	if _, _, err := clirun.Inspect(fake.NewClientset(objects...), "--sort-by=.bogus"); err == nil {
		t.Error("a field that no node has is no mistake")
	}
}
