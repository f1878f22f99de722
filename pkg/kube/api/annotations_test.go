package api

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/tabletest"
)

const source = "pkg/kube/api/annotations.go"

// chartsList returns the input of the chart's templates for admission policies.
func chartsList() string {
	var out strings.Builder
	out.WriteString("# What follows is " + tabletest.Made(source) + "\n")
	quoted := func(s string) string {
		var text strings.Builder
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		if err := e.Encode(s); err != nil {
			panic(err)
		}
		return strings.TrimSpace(text.String())
	}
	list := func(key, comment string, of writer) {
		fmt.Fprintf(&out, "# %s\n%s:\n", comment, key)
		for _, a := range annotations {
			switch {
			case a.writer != of:
			case a.cel == "":
				fmt.Fprintf(&out, "  - name: %s\n", a.name)
			default:
				fmt.Fprintf(&out, "  - name: %s\n    want: %s\n    cel: %s\n", a.name, quoted(a.want), quoted(a.cel))
			}
		}
	}
	list("users", "Users write these on pods: what a value must be, in words and in CEL, where v is the value.", byUsers)
	list("binding", "The scheduler and the device plugin write these on pods.", byBinding)
	list("waking", "The scheduler and kubectl inspect gpumem write these on pods that wait.", byWaking)
	list("node", "The device plugin writes these on its node.", byPlugin)
	return out.String()
}

func tableForUsers() string {
	out := "| annotation | value | effect |\n|---|---|---|\n"
	for _, a := range annotations {
		if a.writer == byUsers {
			out += fmt.Sprintf("| `%s/%s` | %s | %s |\n", DefaultDomain, a.name, a.value, a.effect)
		}
	}
	return out
}

func tableOfValues() string {
	out := "| annotation | a value must be |\n|---|---|\n"
	for _, a := range annotations {
		if a.writer == byUsers {
			out += fmt.Sprintf("| `%s` | `%s` |\n", a.name, a.want)
		}
	}
	return out
}

func tableOfOthers() string {
	out := "| annotation | written by | value | says |\n|---|---|---|---|\n"
	for _, a := range annotations {
		if a.writer != byUsers {
			out += fmt.Sprintf("| `%s/%s` | %s | %s | %s |\n", DefaultDomain, a.name, a.writer, a.value, a.effect)
		}
	}
	return out
}

func tableOfPolicies() string {
	out := "| policy | of GPUs it prefers | of nodes it prefers | can be the chart's `policy` and `nodePolicy` |\n|---|---|---|---|\n"
	for _, p := range placement.Policies() {
		gpu, node := p.Doc()
		out += fmt.Sprintf("| `%s` | %s | %s | %s |\n", p, gpu, node, map[bool]string{true: "yes", false: "no"}[p.OfCluster()])
	}
	return out
}

// The chart accepts and documents the policies that administrators can choose.
func TestTheChartHasThePolicies(t *testing.T) {
	var schema struct {
		Properties struct {
			Policy, NodePolicy struct{ Enum []placement.Policy }
		}
	}
	if err := json.Unmarshal([]byte(tabletest.Read(t, "charts/gpumem/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	want := placement.ClusterPolicies()
	if diff := cmp.Diff(want, schema.Properties.Policy.Enum); diff != "" {
		t.Errorf("values.schema.json, policy (-table +schema):\n%s", diff)
	}
	if diff := cmp.Diff(append([]placement.Policy{""}, want...), schema.Properties.NodePolicy.Enum); diff != "" {
		t.Errorf("values.schema.json, nodePolicy (-table +schema):\n%s", diff)
	}
	values := tabletest.Read(t, "charts/gpumem/values.yaml")
	for _, p := range want {
		if !strings.Contains(values, fmt.Sprintf("\n#   %s  ", p)) {
			t.Errorf("values.yaml does not explain the policy %s", p)
		}
	}
}

// The chart and the docs match the tables.
func TestWhatIsMadeOfTheTable(t *testing.T) {
	tabletest.Whole(t, "charts/gpumem/files/annotations.yaml", chartsList())
	tabletest.Between(t, "docs/pods.md", source, tableForUsers())
	tabletest.Between(t, "docs/choosing-gpus.md", source, tableOfValues())
	tabletest.Between(t, "docs/choosing-gpus.md", "pkg/core/placement/policy.go", tableOfPolicies())
	tabletest.Between(t, "docs/reference.md", source, tableOfOthers())
}

// Each annotation has a unique name and all fields that its writer requires.
func TestTheTableOfAnnotations(t *testing.T) {
	cases := readCases(t)
	var names []string
	for _, a := range annotations {
		if slices.Contains(names, a.name) {
			t.Errorf("%s: twice", a.name)
		}
		names = append(names, a.name)
		if a.value == "" || a.effect == "" {
			t.Errorf("%s: without words for people", a.name)
		}
		users := a.writer == byUsers
		if (a.read != nil) != users || (a.want != "") != users || (a.cel != "") != users || a.render != nil && !users {
			t.Errorf("%s: want, cel, read and wish are of what users write", a.name)
		}
		if tc, ok := cases[a.name]; ok != users || tc.Want != a.want || users && (len(tc.Taken) == 0 || len(tc.Refused) == 0) {
			t.Errorf("%s: testdata/annotations.json has %+v, want values that are taken and refused: %q", a.name, tc, a.want)
		}
		for _, p := range placement.Policies() {
			if a.name == policyName && !slices.Contains(cases[a.name].Taken, string(p)) {
				t.Errorf("testdata/annotations.json does not take the policy %s", p)
			}
		}
		delete(cases, a.name)
	}
	for name := range cases {
		t.Errorf("testdata/annotations.json has %s, which is none", name)
	}
}

// Every annotation by users changes the request and its key. So caches of decisions, and the comparison of
// interchangeable pods, distinguish requests by it.
func TestEachAnnotationCountsInTheKey(t *testing.T) {
	for name, tc := range readCases(t) {
		ask := func(annotations ...string) placement.Key {
			r, err := names(t).Request(annotated(pod(container("c", "gpu-mem", "64")), annotations...))
			if err != nil {
				t.Fatal(err)
			}
			return r.GPUKey()
		}
		value := tc.Taken[len(tc.Taken)-1]
		if ask() == ask(name, value) {
			t.Errorf("%s: %q makes no difference", name, value)
		}
	}
}

func TestWishes(t *testing.T) {
	r, err := names(t).Request(annotated(pod(container("c", "gpu-mem", "1")), "gpu-model", "T4", "enforcement", "mps"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := Wishes(r), " matching T4, at the level mps or a stronger one"; got != want {
		t.Errorf("the pod asks for a GPU%s, want %s", got, want)
	}
}

func readCases(t *testing.T) (cases map[string]struct {
	Want           string
	Taken, Refused []string
}) {
	t.Helper()
	text, err := os.ReadFile("testdata/annotations.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}
