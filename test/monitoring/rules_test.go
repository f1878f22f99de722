package monitoring

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpumem/gpumem/test/cluster"
)

// TestAlerts: each alert of the chart fires when it should, says what it should,
// and does not fire before.
func TestAlerts(t *testing.T) {
	cache, err := cluster.DefaultCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	programs, err := Programs(t.Context(), cache)
	if err != nil {
		t.Skip(err)
	}
	chart := filepath.Join("..", "..", "charts", "gpumem")
	for _, args := range [][]string{
		{"check", "rules", filepath.Join(chart, "files", "rules.yaml")},
		{"test", "rules", filepath.Join(chart, "tests", "rules_test.yaml")},
	} {
		if output, err := exec.CommandContext(t.Context(), filepath.Join(programs, "promtool"), args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, output)
		}
	}
}
