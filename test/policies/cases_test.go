package policies

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const chart = "../../charts/gpumem"

// TestCases evaluates the tables of charts/gpumem/tests/admission.
func TestCases(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(chart, "tests", "admission", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("tables of cases: %v, %v", files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat(filepath.Join(chart, "templates", "admission", name+".yaml")); err != nil {
				t.Error(err)
			}
			if name == "quotas" {
				runCases[v1.ResourceQuota](t, name, "resourcequotas")
			} else {
				runCases[v1.Pod](t, name, "pods")
			}
		})
	}
}

func runCases[T any, P interface {
	object[T]
	runtime.Object
}](t *testing.T, name, resource string) {
	table, err := Load[T, P](chart, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range table.Cases {
		t.Run(c.Name, func(t *testing.T) {
			r := request{resource: resource, subresource: c.Subresource, is: P(c.Is)}
			if c.Was != nil {
				r.was = P(c.Was)
			}
			check(t, policy(t, cmp.Or(c.Values, table.Values), table.Policy), r, c.Refused)
		})
	}
}
