package cli_test

import (
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// On a terminal of 80 columns no row of a list wraps; -o wide prints every column whole.
func TestListsFitATerminal(t *testing.T) {
	client := func() *fake.Clientset {
		node := kubetest.Node(t, "ip-10-0-12-34.ec2.internal", kubetest.Inventory("ip-10-0-12-34.ec2.internal", 80, 80))
		return fake.NewClientset(append(clitest.OddCluster(t), node)...)
	}
	for _, args := range []string{"", "--trouble", "pods --waiting", "pods", "gpus", "nodes", "fit --mem 10"} {
		for _, wide := range []bool{false, true} {
			given := strings.Fields(args)
			if wide {
				given = append(given, "-o", "wide")
			}
			if wide && args == "--trouble" {
				continue
			}
			stdout, _, _ := clirun.OnTerminal(client(), 80, given...)
			free, _, _ := clirun.Inspect(client(), given...)
			if wide && stdout != free {
				t.Errorf("%s: the terminal changes a wide table:\n%s", given, stdout)
			}
			rows, notes, _ := strings.Cut(stdout, "\n\n")
			if cut, says := strings.Contains(rows, "…"), strings.Contains(notes, "-o wide prints it in full"); cut != says && args != "--trouble" {
				t.Errorf("%s: a text is cut: %v; the note says so: %v", given, cut, says)
			}
			if rows == "" {
				t.Errorf("%s printed nothing", given)
			}
			for row := range strings.SplitSeq(rows, "\n") {
				if n := table.Width(row); !wide && n > 80 {
					t.Errorf("%s: a row of %d columns:\n%s", given, n, row)
				}
			}
		}
	}
}

// The legend has no notes about columns that a narrow terminal omits.
func TestLegendsOfShownColumns(t *testing.T) {
	for _, tc := range []struct{ args, note, header string }{
		{"gpus", "? is unknown: the device plugin", "USED("},
		{"gpus -n ml", "PODS counts only pods of namespace ml.\n", "  PODS  "},
		{"pods", "? is unknown: no program", "USED("},
		{"", "PENDING: on no known GPU", "PENDING("},
	} {
		for columns, want := range map[int]bool{20: false, 200: true} {
			stdout, _, _ := clirun.OnTerminal(fake.NewClientset(clitest.OddCluster(t)...), columns, strings.Fields(tc.args)...)
			header, _, _ := strings.Cut(stdout, "\n")
			if strings.Contains(header, tc.header) != want || strings.Contains(stdout, tc.note) != want {
				t.Errorf("%q on %d columns: want %q and its note: %t, got:\n%s", tc.args, columns, tc.header, want, stdout)
			}
		}
	}
	if stdout, _, _ := clirun.Inspect(fake.NewClientset(clitest.OddCluster(t)...), "gpus"); strings.Contains(stdout, "PODS counts") {
		t.Errorf("a note about one namespace in a list of all:\n%s", stdout)
	}
}
