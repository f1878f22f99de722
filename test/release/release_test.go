package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/test/images"
)

const root = "../.."

// The package has what an installation needs, nothing else, and is the same each
// time.
func TestChartPackage(t *testing.T) {
	var made [2][]byte
	for i := range made {
		r := &Release{Root: root, Out: t.TempDir(), Version: "v1.2.3", Log: io.Discard}
		if err := r.chart(); err != nil {
			t.Fatal(err)
		}
		var err error
		if made[i], err = os.ReadFile(filepath.Join(r.Out, "gpumem-1.2.3.tgz")); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(made[0], made[1]) {
		t.Error("it is another one each time")
	}
	names := namesIn(t, made[0])
	for _, want := range []string{"gpumem/Chart.yaml", "gpumem/values.yaml", "gpumem/values.schema.json", "gpumem/templates/_helpers.tpl", "gpumem/templates/tests/pod.yaml", "gpumem/templates/NOTES.txt"} {
		if !slices.Contains(names, want) {
			t.Errorf("it lacks %s", want)
		}
	}
	for _, name := range names {
		if strings.HasPrefix(name, "gpumem/ci/") || strings.HasPrefix(name, "gpumem/tests/") {
			t.Errorf("it has %s, a check of the chart", name)
		}
	}
}

func TestAChartOfAnotherVersion(t *testing.T) {
	r := &Release{Root: root, Out: filepath.Join(t.TempDir(), "out"), Version: "v99.0.0", Log: io.Discard}
	if err := r.Make(t.Context()); err == nil || !strings.Contains(err.Error(), "the release is v99.0.0, and charts/gpumem/Chart.yaml has version ") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(r.Out); err == nil {
		t.Error("something was made")
	}
}

func namesIn(t *testing.T, archive []byte) (names []string) {
	t.Helper()
	plain, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(plain); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		if !header.ModTime.IsZero() && header.ModTime.Unix() != 0 {
			t.Errorf("%s has a time: %s", header.Name, header.ModTime)
		}
		names = append(names, header.Name)
	}
}

func TestSBOM(t *testing.T) {
	r := &Release{Root: root, Version: "v1.2.3", work: t.TempDir()}
	binary, err := r.compile(t.Context(), root, "./cmd/kubectl-inspect-gpumem", platform{runtime.GOOS, runtime.GOARCH}, "")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubectl-inspect-gpumem.cdx.json")
	library := images.File{Path: "/lib/libc.so.6", Source: binary}
	if err := writeSBOM(file, binary, "v1.2.3", []images.File{library}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got bom
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Format != "CycloneDX" || got.SpecVersion != "1.6" || len(got.Metadata.Component.Hashes) != 1 {
		t.Errorf("it begins with %+v", got.Metadata)
	}
	for name, version := range map[string]string{"/lib/libc.so.6": "", "std": strings.TrimPrefix(runtime.Version(), "go"), "github.com/spf13/pflag": ""} {
		i := slices.IndexFunc(got.Components, func(c component) bool { return c.Name == name })
		if i < 0 || version != "" && got.Components[i].Version != version || got.Components[i].Version == "" && len(got.Components[i].Hashes) == 0 {
			t.Errorf("%s is not in it, or of another version than %q", name, version)
		}
	}
}

func TestKrewManifestAndSums(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "inspect-gpumem.yaml")
	platforms := []krewPlatform{{Selector: selector{map[string]string{"os": "linux", "arch": "amd64"}}, URI: "https://example.com/a.tar.gz", Sum: "00", Bin: "kubectl-inspect-gpumem"}}
	if err := writeKrew(file, "v1.2.3", platforms); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Kind     string
		Metadata struct{ Name string }
		Spec     struct {
			Version   string
			Platforms []krewPlatform
		}
	}
	if err := yaml.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Kind != "Plugin" || got.Metadata.Name != "inspect-gpumem" || got.Spec.Version != "v1.2.3" || len(got.Spec.Platforms) != 1 || got.Spec.Platforms[0].Bin != "kubectl-inspect-gpumem" {
		t.Errorf("manifest %+v", got)
	}
	if err := writeSums(dir); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err != nil {
		t.Fatal(err)
	}
	digest, err := sum(file)
	if err != nil || string(sums) != digest+"  inspect-gpumem.yaml\n" {
		t.Errorf("sums %q, %v", sums, err)
	}
}
