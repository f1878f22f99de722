package partition

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// library compiles testdata/limits.c, which remembers limits as long as it is loaded: for good.
func library(t *testing.T, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	args := append([]string{"-shared", "-fPIC", "-Wl,-z,nodelete", "-o", out, "testdata/limits.c"}, flags...)
	if text, err := exec.CommandContext(t.Context(), "cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, text)
	}
	return out
}

func TestLimitsOfControlGroups(t *testing.T) {
	l := New(library(t), "")
	if _, _, ok, err := l.Get(t.Context(), "GPU-a", "/g"); ok || err != nil {
		t.Errorf("before they are set: %t, %v", ok, err)
	}
	if err := l.Set(t.Context(), "GPU-a", "/g", 3<<30, 1<<64-1); err != nil {
		t.Fatal(err)
	}
	if soft, hard, ok, err := l.Get(t.Context(), "GPU-a", "/g"); soft != 3<<30 || hard != 1<<64-1 || !ok || err != nil {
		t.Errorf("they read back as %d and %d, %v", soft, hard, err)
	}
	if err := l.Set(t.Context(), "GPU-a", "/foreign", 1, 1); err == nil || !strings.Contains(err.Error(), "CAP_SYS_ADMIN") {
		t.Errorf("without the right to: %v", err)
	}
	if err := l.Set(t.Context(), "GPU-b", "/g", 1, 1); err == nil {
		t.Error("a GPU that is not there has limits")
	}
}

func TestLimitsOfAnOlderDriver(t *testing.T) {
	for path, says := range map[string]string{
		library(t, "-DOLD"): "the driver's NVML has no limits of memory",
		"/nowhere.so":       "cannot be loaded",
	} {
		if err := New(path, "").Set(t.Context(), "GPU-a", "/g", 1, 1); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q in it", path, err, says)
		}
	}
}

// TestLimitsDoNotWaitForADriverThatHangs: neither the call that hangs nor the next is waited for.
func TestLimitsDoNotWaitForADriverThatHangs(t *testing.T) {
	l := New(library(t), "")
	for _, dir := range []string{"/hangs", "/g"} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := l.Set(ctx, "GPU-a", dir, 1, 1); err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("%s: %v", dir, err)
		}
		cancel()
	}
}
