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
	if !results.OK() || len(results) < 50 {
		t.Error("an attack was not blocked, or fewer than 50 were tried")
	}
}
