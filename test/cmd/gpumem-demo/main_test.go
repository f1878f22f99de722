package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestEndSaysThatThereWasNone(t *testing.T) {
	var out strings.Builder
	if err := end(t.Context(), filepath.Join(t.TempDir(), "demo"), &out); err != nil || out.String() != "No demo is up.\n" {
		t.Errorf("error %v, says %q", err, out.String())
	}
}
