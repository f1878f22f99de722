package release

import (
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Two who make a release of the same sources get the same bytes, wherever their checkout is.
// Here for the platform of this machine and out of one cache of Go's; the workflow of a
// release compares two machines.
func TestTwiceTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds everything")
	}
	// The schedulers for other versions of Kubernetes differ by two flags, and take minutes.
	services := slices.DeleteFunc(services(), func(s service) bool { return len(s.flags) > 0 })
	var made [2]string
	for i, checkout := range []string{root, copied(t)} {
		r := &Release{Root: checkout, Out: t.TempDir(), Version: chartVersion(t), All: true, Log: io.Discard}
		if err := r.make(t.Context(), services, []platform{{"linux", runtime.GOARCH}}); err != nil {
			t.Fatal(err)
		}
		sums, err := os.ReadFile(filepath.Join(r.Out, sumsFile))
		if err != nil {
			t.Fatal(err)
		}
		made[i] = string(sums)
		// The module of ours that it is linked from is named as what it is, not by its folder.
		bom, err := os.ReadFile(r.named("gpumem-scheduler-"+r.Version+"-kube1.36", platform{"linux", runtime.GOARCH}, ".cdx.json"))
		if want := `"pkg:golang/github.com/gpumem/gpumem@` + r.Version + `"`; err != nil || !strings.Contains(string(bom), want) {
			t.Errorf("the SBOM of gpumem-scheduler lacks %s, %v", want, err)
		}
	}
	if diff := cmp.Diff(made[0], made[1]); diff != "" {
		t.Errorf("the second time:\n%s", diff)
	}
	for _, want := range []string{
		"  gpumem-" + strings.TrimPrefix(chartVersion(t), "v") + ".tgz\n", "  gpumem-extender-" + chartVersion(t) + ".oci.tar\n",
		"  gpumem-scheduler-" + chartVersion(t) + "-kube1.36.oci.tar\n", "  gpumem-device-plugin-" + chartVersion(t) + ".oci.tar\n", "  gpumem-sample-" + chartVersion(t) + ".oci.tar\n",
		"  images.txt\n", "  inspect-gpumem.yaml\n", "  notes.md\n", "  kubectl-inspect-gpumem-" + chartVersion(t) + "-linux-" + runtime.GOARCH + ".tar.gz\n",
	} {
		if !strings.Contains(made[0], want) {
			t.Errorf("the release lacks%s", want)
		}
	}
}

// copied returns a copy of the checkout's files.
func copied(t *testing.T) string {
	t.Helper()
	from, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = from
	names, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "elsewhere")
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(from, name))
		switch info, statErr := os.Stat(filepath.Join(from, name)); {
		case os.IsNotExist(statErr):
			continue // deleted, and not committed
		case statErr != nil || err != nil:
			t.Fatal(statErr, err)
		default:
			write(t, filepath.Join(to, name), text, info.Mode())
		}
	}
	return to
}

func write(t *testing.T, name string, text []byte, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, text, mode); err != nil {
		t.Fatal(err)
	}
}

// The notes are what the changelog says of the version, and nothing of another.
func TestNotes(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "CHANGELOG.md"), []byte("# Changelog\n\n## [Unreleased]\n\nlater\n\n## [1.1.0] - 2026-01-02\n\n### Added\n\n- now\n\n## [1.0.0]\n\nbefore\n"), 0o644)
	for version, want := range map[string]string{"v1.1.0": "### Added\n\n- now\n", "v1.0.0": "before\n", "v1.2.0": "later\n"} {
		got, err := (&Release{Root: dir, Version: version}).notes()
		if err != nil || string(got) != want {
			t.Errorf("%s: %v, %q, want %q", version, err, got, want)
		}
	}
	write(t, filepath.Join(dir, "CHANGELOG.md"), []byte("# Changelog\n\n## [Unreleased]\n\n## [1.0.0]\n\nbefore\n"), 0o644)
	if got, err := (&Release{Root: dir, Version: "v1.2.0"}).notes(); err == nil {
		t.Errorf("the changelog says nothing of a version, and its notes are %q", got)
	}
}

// Each module of each program has a licence that is accepted. The texts go with the program.
func TestLicences(t *testing.T) {
	for text, want := range map[string]string{
		"  Apache License\n     Version 2.0, January 2004": "Apache-2.0", "Permission is hereby granted, free of charge, to any\nperson obtaining a copy": "MIT",
		"GNU GENERAL PUBLIC LICENSE Version 3": "", "All rights reserved.": "",
	} {
		if got := licenceOf([]byte(text)); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	r := &Release{Root: root, Version: "v1.2.3", work: t.TempDir()}
	binary, err := r.compile(t.Context(), root, "./cmd/kubectl-inspect-gpumem", platform{runtime.GOOS, runtime.GOARCH}, "")
	if err != nil {
		t.Fatal(err)
	}
	file, err := r.licences(t.Context(), root, binary)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "=== github.com/spf13/pflag v") || !strings.Contains(string(text), "=== Go go1.") {
		t.Errorf("%v, %s", err, text[:min(len(text), 500)])
	}
}
