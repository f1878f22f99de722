package probe

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	for name, tc := range map[string]struct {
		flags []string
		says  string // error; empty if the limit holds
	}{
		"the limit, and a context inside it": {[]string{"-DLIMIT=512", "-DBEYOND=2"}, ""},
		"no limit":                           {[]string{"-DLIMIT=4096", "-DBEYOND=2"}, "more memory than its limit"},
		"nothing to be had":                  {[]string{"-DLIMIT=8", "-DBEYOND=2"}, "gets no 16 MiB within its limit of 1024 MiB: error 2"},
		"another error than no memory":       {[]string{"-DLIMIT=512", "-DBEYOND=999"}, "gets error 999"},
		"no GPU":                             {[]string{"-DLIMIT=512", "-DBEYOND=2", "-DNO_GPU=1"}, "CUDA sees no GPU: error 100"},
		"another library":                    {[]string{"-DNO_ALLOCATION"}, "lacks what a program needs"},
	} {
		t.Run(name, func(t *testing.T) {
			library := filepath.Join(t.TempDir(), "libcuda.so.1")
			args := append([]string{"-shared", "-fPIC", "-o", library, "testdata/cuda.c"}, tc.flags...)
			if text, err := exec.CommandContext(t.Context(), "cc", args...).CombinedOutput(); err != nil {
				t.Fatalf("cc: %v\n%s", err, text)
			}
			err := Run(library)
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %q", err, tc.says)
			}
		})
	}
	if err := Run("/nowhere/libcuda.so.1"); err == nil || !strings.Contains(err.Error(), "cannot be loaded") {
		t.Errorf("no library: %v", err)
	}
}
