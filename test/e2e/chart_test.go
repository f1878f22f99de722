package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestChartRendersAsRecorded(t *testing.T) {
	e := setup(t)
	helm, err := e.cluster.Helm(e.ctx, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(e.ctx, filepath.Join(suite.stack.Chart(), "tests", "golden.sh"))
	cmd.Env = append(os.Environ(), "HELM="+helm)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestNotesSayHowToCheck(t *testing.T) {
	setup(t)
	for _, want := range []string{"kubectl inspect gpumem", "gpumem-scheduler", "gpumem.dev/gpu-mem"} {
		if !strings.Contains(suite.notes, want) {
			t.Errorf("the notes do not name %q:\n%s", want, suite.notes)
		}
	}
}
