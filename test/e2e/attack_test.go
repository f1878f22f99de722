package e2e

import (
	"strings"
	"testing"

	"github.com/gpumem/gpumem/test/attack"
)

// TestAttacks: what docs/security.md says is blocked is. gpumem-attack tries the same, and
// more.
func TestAttacks(t *testing.T) {
	e := setup(t)
	var said strings.Builder
	results, err := attack.Run(e.ctx, attack.Config{Cluster: e.cluster, Stack: suite.stack, Log: &said})
	t.Logf("%s%s", said.String(), results)
	if err != nil {
		t.Error(err)
	}
	for _, result := range results {
		if !result.Blocked {
			t.Errorf("not blocked: %s", result)
		}
	}
	if len(results) < 50 {
		t.Errorf("%d attacks were tried, want at least 50", len(results))
	}
}
