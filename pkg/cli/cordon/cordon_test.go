package cordon_test

import (
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
)

func TestCordonAndUncordon(t *testing.T) {
	client := fake.NewClientset(clitest.Node(t, "gpu-a", clitest.Inventory("gpu-a", 16, 80)), clitest.Node(t, "gpu-b", clitest.Inventory("gpu-b", 16)))
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
