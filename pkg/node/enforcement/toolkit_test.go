package enforcement

import (
	"os"
	"strings"
	"testing"
)

func TestHook(t *testing.T) {
	host, driver := t.TempDir(), t.TempDir()
	toolkit := NewToolkit(host, driver)
	wantError := func(text string) {
		t.Helper()
		if err := toolkit.Hook(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q", err, text)
		}
	}
	wantError("was not found")
	program := write(t, strings.Repeat("x", 3<<20)+"create-symlinks", host, "usr/local/nvidia/toolkit/nvidia-cdi-hook")
	wantError("has no hook apply-cuda-memory-limits")

	// The name lies across the end of a block that is read at once.
	write(t, strings.Repeat("x", 1<<20-5)+hookName+"more", host, "usr/local/nvidia/toolkit/nvidia-cdi-hook")
	if err := toolkit.Hook(); err != nil {
		t.Errorf("the program has it: %v", err)
	}
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	wantError("was not found")

	write(t, "containerEdits:\n  hooks:\n  - args: [nvidia-cdi-hook, apply-cuda-memory-limits]\n", driver, "etc/cdi/nvidia.yaml")
	if err := toolkit.Hook(); err != nil {
		t.Errorf("the specification names it: %v", err)
	}
}
