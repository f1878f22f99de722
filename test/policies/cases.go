package policies

import (
	"fmt"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Table is a file of charts/gpumem/tests/admission: cases of one admission policy.
type Table[T any] struct {
	Policy string    `json:"policy"` // name of the ValidatingAdmissionPolicy
	Values string    `json:"values"` // file of ci/ that the chart is rendered with
	Cases  []Case[T] `json:"cases"`
}

// Case is a request to the API server and its outcome.
type Case[T any] struct {
	Name        string `json:"name"`
	Values      string `json:"values"` // file of ci/; default: Table.Values
	Subresource string `json:"subresource"`
	Was         *T     `json:"was"` // nil if the request creates the object
	Is          *T     `json:"is"`
	Refused     string `json:"refused"` // part of the API server's message; empty if it accepts the request
}

// object is the type of the objects of cases.
type object[T any] interface {
	*T
	metav1.Object
}

// Load reads the cases of a policy from the folder of the chart. Each object
// gets the namespace team and the name p.
func Load[T any, P object[T]](chart, policy string) (table Table[T], err error) {
	text, err := os.ReadFile(filepath.Join(chart, "tests", "admission", policy+".yaml"))
	if err != nil {
		return table, err
	}
	if err := yaml.UnmarshalStrict(text, &table); err != nil {
		return table, fmt.Errorf("cases of %s: %w", policy, err)
	}
	for _, c := range table.Cases {
		if c.Is == nil {
			return table, fmt.Errorf("cases of %s: %q has no object", policy, c.Name)
		}
		for _, o := range []*T{c.Was, c.Is} {
			if o != nil {
				P(o).SetNamespace("team")
				P(o).SetName("p")
			}
		}
	}
	return table, nil
}
