// Package helm renders the chart for tests that start no cluster, so that they check the
// templates and not a copy of their output.
package helm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gpumem/gpumem/test/checkout"
)

// Path returns the path of Helm: $HELM, or the test cluster's Helm, which Go builds once and
// caches with its other builds.
var Path = sync.OnceValues(func() (string, error) {
	if named := os.Getenv("HELM"); named != "" {
		return named, nil
	}
	root, err := checkout.Root()
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "tool", "-n", "helm")
	cmd.Dir, cmd.Env = filepath.Join(root, "test", "cluster", "components"), append(os.Environ(), "CGO_ENABLED=0")
	var problem bytes.Buffer
	cmd.Stderr = &problem
	path, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build Helm: %w: %s", err, problem.String())
	}
	return strings.TrimSpace(string(path)), nil
})

// Template runs "helm template" for the release gpumem without a cluster. The error contains
// Helm's message.
func Template(ctx context.Context, chart string, flags ...string) (string, error) {
	helm, err := Path()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, helm, append([]string{"template", "gpumem", chart, "--namespace", "gpumem-system"}, flags...)...)
	cmd.Env = append(os.Environ(), "HOME=/nowhere", "KUBECONFIG=/nowhere")
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, problem.String())
	}
	return out.String(), nil
}

var renders sync.Map // from the name of a file of ci/ to a function that returns its render

// Values returns the render of the chart with ci/NAME-values.yaml, as charts/gpumem/tests/golden.sh
// makes it. Tests of one program share a render.
func Values(t testing.TB, name string) string {
	t.Helper()
	once, _ := renders.LoadOrStore(name, sync.OnceValues(func() (string, error) {
		root, err := checkout.Root()
		if err != nil {
			return "", err
		}
		chart := filepath.Join(root, "charts", "gpumem")
		return Template(context.Background(), chart, "--kube-version", "v1.36.3", "--values", filepath.Join(chart, "ci", name+"-values.yaml"))
	}))
	text, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
