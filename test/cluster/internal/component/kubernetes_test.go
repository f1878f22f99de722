package component

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPrebuiltKubernetes(t *testing.T) {
	for _, tc := range []struct {
		name, version, missing, want string
	}{
		{"the pinned version", KubernetesVersion, "", ""},
		{"another patch", "v1.36.9", "", ""},
		{"another minor version", "v1.35.3", "", `want v1.36.*: download them as "make demo" shows`},
		{"a longer minor version", "v1.360.3", "", "want v1.36.*"},
		{"a program is missing", KubernetesVersion, "kubelet", "kubelet: no such file or directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range kubePrograms() {
				if name == tc.missing {
					continue
				}
				script := fmt.Sprintf("#!/bin/sh\necho Kubernetes %s\n", tc.version)
				if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv(kubernetesVariable, dir)
			dirs, err := Builder{Sources: t.TempDir(), Cache: t.TempDir()}.Build(t.Context(), Kube)
			if tc.want == "" {
				if err != nil || dirs[Kube] != dir {
					t.Errorf("got %s, %v; want %s", dirs[Kube], err, dir)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), kubernetesVariable) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestPrebuiltKubernetesIsAnAbsolutePath(t *testing.T) {
	t.Setenv(kubernetesVariable, "kubernetes")
	if _, err := (Builder{Sources: t.TempDir(), Cache: t.TempDir()}).Build(t.Context(), Kube); err == nil || !strings.Contains(err.Error(), "want the absolute path") {
		t.Errorf("got error %v", err)
	}
}

func TestDownloadAdviceNamesEachProgram(t *testing.T) {
	advice := DownloadAdvice()
	for _, word := range append(kubePrograms(), KubernetesVersion, "sha256sum --check", kubernetesVariable+"=") {
		if !strings.Contains(advice, word) {
			t.Errorf("the advice lacks %q:\n%s", word, advice)
		}
	}
}
