package cmdutil

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gpumem/gpumem/pkg/kube/tabletest"
)

func TestExitCode(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want int
	}{
		{nil, ExitOK}, {errors.New("failed"), ExitFailed}, {fmt.Errorf("fit: %w", Exit(ExitUnknown, errors.New("not known"))), ExitUnknown},
	} {
		if got := ExitCode(tc.err); got != tc.want {
			t.Errorf("%v: exit code %d, want %d", tc.err, got, tc.want)
		}
	}
}

func TestTableOfExitCodes(t *testing.T) {
	table := "| exit code | meaning |\n|---|---|\n"
	for code, meaning := range exitCodes {
		table += fmt.Sprintf("| %d | %s |\n", code, meaning)
	}
	tabletest.Between(t, "docs/stability.md", "pkg/cli/cmdutil/exit.go", table)
}
