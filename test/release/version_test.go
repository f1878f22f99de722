package release

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// chartVersion returns the version of the chart, with a v.
func chartVersion(t *testing.T) string {
	t.Helper()
	chart, err := os.ReadFile(filepath.Join(root, "charts", "gpumem", "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return "v" + string(regexp.MustCompile(`(?m)^version: (\S+)$`).FindSubmatch(chart)[1])
}

// What names a version of ours names that of the chart: a sample or a page would ask for an
// image that no release brings.
func TestOneVersionEverywhere(t *testing.T) {
	version := strings.TrimPrefix(chartVersion(t), "v")
	names := regexp.MustCompile(`\b(?:gpumem-(?:extender|device-plugin|sample):|gpumem-(?:extender|device-plugin|sample)-v|kubectl-inspect-gpumem-v|\$image:|\$image-v|(?m:^VERSION  \?= v)|(?m:^> \*\*Status: )|(?m:^\tVersion = "))(\d+\.\d+\.\d+)`)
	found := 0
	for _, at := range []string{"Makefile", "README.md", "charts", "config", "docs", "test/cluster/cluster.go", "test/stack/stack.go"} {
		err := filepath.WalkDir(filepath.Join(root, at), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, ".svg") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, name := range names.FindAllSubmatch(text, -1) {
				if found++; string(name[1]) != version {
					t.Errorf("%s has %s; the chart's version is %s", path, name[0], version)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 40 {
		t.Errorf("only %d places name a version: the test does not see them any more", found)
	}
}
