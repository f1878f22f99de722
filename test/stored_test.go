package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestUpgradeWithStoredValues renders the chart with the values that a release of an earlier
// chart may have stored, as "helm upgrade --reset-then-reuse-values" merges them: the stored
// values override the defaults of the new chart, and the new flags override both. A default that
// was removed since belongs into values.schema.json with the definition "removed".
func TestUpgradeWithStoredValues(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(chart, "tests/stored/*-values.yaml"))
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), "-values.yaml"), func(t *testing.T) {
			for _, version := range []string{"v1.34.6", "v1.36.3"} {
				text, err := render(t, chart, "--is-upgrade", "--kube-version", version, "--values", file, "--set", "cores=true")
				if err != nil {
					t.Fatalf("%s: %v", version, err)
				}
				if !strings.Contains(text, "- --cores=true\n") {
					t.Errorf("%s: the new flag has no effect", version)
				}
			}
		})
	}
}

// TestUpgradeThatReusesValues renders the chart as "helm upgrade --reuse-values" does: with the
// old chart's defaults in place of the new ones, so that new values are missing.
func TestUpgradeThatReusesValues(t *testing.T) {
	for _, old := range []string{"0.1.0", "0.2.0"} {
		copied := t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(chart)); err != nil {
			t.Fatal(err)
		}
		stored, err := os.ReadFile(filepath.Join(chart, "tests/stored", old+"-values.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(stored, new(map[string]any)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(copied, "values.yaml"), stored, 0o600); err != nil {
			t.Fatal(err)
		}
		const want = "The release's stored values lack values of this chart, or image is null in your values: run helm upgrade with --reset-then-reuse-values instead of --reuse-values, or remove image from your values."
		if _, err := render(t, copied, "--is-upgrade", "--kube-version", "v1.36.3", "--set", "cores=true"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", old, err)
		}
	}
}

// TestImageIsNull renders the chart with values that delete defaults.
func TestImageIsNull(t *testing.T) {
	if _, err := render(t, chart, "--kube-version", "v1.36.3", "--set", "image.registry=null"); err != nil {
		t.Errorf("image.registry: %v", err)
	}
	const want = "or image is null in your values"
	if _, err := render(t, chart, "--kube-version", "v1.36.3", "--set", "image=null"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("image: want %q, got %v", want, err)
	}
}
