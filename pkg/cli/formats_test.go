package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

// Every command with output supports kubectl's formats, and prints the same kind of object in each.
func TestFormatsOfKubectl(t *testing.T) {
	dir := t.TempDir()
	path, template := filepath.Join(dir, "path"), filepath.Join(dir, "template")
	for file, text := range map[string]string{path: "{.kind}", template: "{{.apiVersion}}"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for verb, kind := range map[string]string{
		"": "Report", "nodes": "Report", "gpus": "GPUList", "pods": "PodList", "top": "PodList", "fit --mem 3": "RoomList",
		"explain ml/huge": "Explanation", "doctor": "FindingList", "namespaces": "NamespaceList",
	} {
		for format, want := range map[string]string{
			"-o jsonpath={.kind}":                     kind,
			"-o jsonpath={.apiVersion}":               "inspect.gpumem.dev/v1",
			"-o jsonpath-file=" + path:                kind,
			"-o go-template={{.kind}}":                kind,
			"-o go-template --template={{.kind}}":     kind,
			"--template={{.kind}}":                    kind,
			"-o go-template-file=" + template:         "inspect.gpumem.dev/v1",
			"-o jsonpath={.nothing}":                  "",
			"-o jsonpath={range\u00a0.none[*]}x{end}": "",
		} {
			args := strings.Fields(verb + " " + format)
			if strings.Contains(format, "\u00a0") {
				args = append(strings.Fields(verb), "-o", "jsonpath={range .none[*]}x{end}")
			}
			stdout, _, _ := clirun.Inspect(fake.NewClientset(clitest.OddCluster(t)...), args...)
			if stdout != want {
				t.Errorf("%s %s: want %q, got:\n%s", verb, format, want, stdout)
			}
		}
		for format, begins := range map[string]string{"json": "{\n    \"apiVersion\": \"inspect.gpumem.dev/v1\",\n    \"kind\": \"" + kind + "\",", "yaml": "apiVersion: inspect.gpumem.dev/v1\n"} {
			stdout, _, _ := clirun.Inspect(fake.NewClientset(clitest.OddCluster(t)...), append(strings.Fields(verb), "-o", format)...)
			if !strings.HasPrefix(stdout, begins) || !strings.Contains(stdout, kind) {
				t.Errorf("%s -o %s: want it to begin with %q, got:\n%s", verb, format, begins, stdout)
			}
		}
	}
}

// Numbers print exactly, however large they are.
func TestLargeNumbersInTemplates(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 8000)))
	for _, format := range []string{"jsonpath={.total.capacityMiB}", "go-template={{.total.capacityMiB}}"} {
		if stdout, _, err := clirun.Inspect(client, "-o", format); err != nil || stdout != "8192000" {
			t.Errorf("%s: error %v, got %s", format, err, stdout)
		}
	}
}

func TestCustomColumns(t *testing.T) {
	client := func() *fake.Clientset { return fake.NewClientset(clitest.OddCluster(t)...) }
	for line, want := range map[string]string{
		"nodes gpu-a gpu-c -o custom-columns=NAME:.name,FREE:{.largestFree.MiB},GPU:.gpus[*].index": "NAME   FREE    GPU\ngpu-a  0       0,1\ngpu-c  0       0\n",
		"gpus gpu-a -o custom-columns=I:.index,ID:uuid,NO:.bogus":                                   "I  ID           NO\n0  GPU-gpu-a-0  <none>\n1  GPU-gpu-a-1  <none>\n",
		"pods -n ml --no-headers -o custom-columns=:.name":                                          "huge\nleaving\npair\ntrain\n",
		"pods -n ml --sort-by=.granted.MiB --no-headers -o custom-columns=:.name":                   "huge\npair\ntrain\nleaving\n",
	} {
		stdout, _, _ := clirun.Inspect(client(), strings.Fields(line)...) // the odd cluster has unreadable objects, so the error is set
		if diff := cmp.Diff(strings.Fields(want), strings.Fields(stdout)); diff != "" {
			t.Errorf("%s: (-want +got):\n%s\n%s", line, diff, stdout)
		}
	}
	for line, want := range map[string]string{
		"nodes -o custom-columns":       "--output custom-columns names no columns: want custom-columns=HEADER:.field",
		"pods -o custom-columns=NAME":   `--output: custom column "NAME", want HEADER:.field`,
		"gpus -o custom-columns=A:.x[":  `--output: custom column "A:.x["`,
		"pods -o jsonpath={.x":          "unclosed action",
		"pods -w -o jsonpath={.x}":      "--watch prints rows",
		"explain x -o custom-columns=a": "want one of json, yaml, jsonpath=",
		"nodes -d -o name":              "--details does not work",
	} {
		if stdout, _, err := clirun.Inspect(client(), strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) || stdout != "" {
			t.Errorf("%s: want %q, got error %v and:\n%s", line, want, err, stdout)
		}
	}
}
