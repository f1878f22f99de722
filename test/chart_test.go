package test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/gpumem/gpumem/test/helm"
)

var update = flag.Bool("update", false, "write the table of values anew")

const (
	chartReadme = "../charts/gpumem/README.md"
	tableBegin  = "<!-- What follows is made of values.yaml: go test ./test -run TestTableOfValues -update -->\n"
	tableEnd    = "<!-- The end of it. -->\n"
)

// usual are values that are everywhere the same, and explained here only.
var usual = map[string]string{
	"image.repository":           "registry and name of the image",
	"image.tag":                  "tag, or digest `sha256:…`",
	"image.pullPolicy":           "`Always`, `IfNotPresent` or `Never`",
	"resources":                  "of the container",
	"nodeSelector":               "labels of the nodes for these pods",
	"affinity":                   "of these pods",
	"tolerations":                "of these pods",
	"podAnnotations":             "more annotations of these pods",
	"podLabels":                  "more labels of these pods",
	"serviceAccount.name":        "name of the account",
	"serviceAccount.annotations": "annotations of the account",
	"kubeAPI.qps":                "requests a second to the API server",
	"kubeAPI.burst":              "requests to the API server at once",
	"labels":                     "more labels of the object",
	"interval":                   "time between two scrapes",
	"enabled":                    "whether it is made",
}

// TestTableOfValues holds the table in the chart's README to values.yaml: each
// value, its default, the first sentence of its comment, and what else it can be
// where values.schema.json has a list.
func TestTableOfValues(t *testing.T) {
	text, err := os.ReadFile("../charts/gpumem/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	var rows []string
	walkValues(t, readSchema(t), "", document.Content[0], &rows)
	want := "| value | default | what |\n|---|---|---|\n" + strings.Join(rows, "")

	readme, err := os.ReadFile(chartReadme)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(readme), tableBegin)
	got, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table", chartReadme)
	}
	if *update {
		if err := os.WriteFile(chartReadme, []byte(before+tableBegin+want+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the table in %s (-values.yaml +README.md):\n%s", chartReadme, diff)
	}
}

// schema is what is read of values.schema.json.
type schema struct {
	Ref         string            `json:"$ref"`
	Definitions map[string]schema `json:"definitions"`
	Properties  map[string]schema `json:"properties"`
	Items       *schema           `json:"items"`
	Enum        []string          `json:"enum"`
}

func readSchema(t *testing.T) schema {
	t.Helper()
	text, err := os.ReadFile("../charts/gpumem/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var root schema
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	return root
}

// choices returns the values that the schema lists for the one at a path.
func (root schema) choices(path string) []string {
	at := root
	for name := range strings.SplitSeq(path, ".") {
		at = at.Properties[name]
		if definition, ok := strings.CutPrefix(at.Ref, "#/definitions/"); ok {
			at = root.Definitions[definition]
		}
	}
	if at.Items != nil {
		at = *at.Items
	}
	return slices.DeleteFunc(slices.Clone(at.Enum), func(s string) bool { return s == "" })
}

// walkValues adds a row for each value below a mapping.
func walkValues(t *testing.T, root schema, path string, mapping *yaml.Node, rows *[]string) {
	t.Helper()
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 && !strings.HasSuffix(at, "resources") && !strings.HasSuffix(at, "labels") {
			walkValues(t, root, at, value, rows)
			continue
		}
		what := firstSentence(key.HeadComment)
		if what == "" {
			what = firstSentence(value.LineComment)
		}
		for suffix, text := range usual {
			if what == "" && strings.HasSuffix(at, suffix) {
				what = text
			}
		}
		if strings.HasPrefix(what, "-") {
			t.Errorf("%s has the examples of the value before it as its comment", at)
		}
		if what == "" {
			t.Errorf("%s has no comment in values.yaml", at)
		}
		named := func(choice string) bool { return strings.Contains(what, choice) }
		if choices := root.choices(at); len(choices) > 0 && !named(choices[len(choices)-1]) {
			what += ": `" + strings.Join(choices, "`, `") + "`"
		}
		*rows = append(*rows, fmt.Sprintf("| `%s` | %s | %s |\n", at, inline(t, value), what))
	}
}

// firstSentence returns the first sentence of a comment, without a full stop.
func firstSentence(comment string) string {
	var words []string
	for line := range strings.Lines(comment) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "#")
		if strings.HasPrefix(line, "   ") { // a list: what the sentence announces
			break
		}
		words = append(words, strings.Fields(line)...)
	}
	sentence := strings.Join(words, " ")
	if end := strings.Index(sentence, ". "); end >= 0 {
		sentence = sentence[:end]
	}
	return strings.NewReplacer("|", `\|`, "<domain>", "`<domain>`").Replace(strings.TrimRight(sentence, ".:"))
}

// inline returns a value on one line, for a cell; nothing for an empty string.
func inline(t *testing.T, value *yaml.Node) string {
	t.Helper()
	if value.Kind == yaml.ScalarNode {
		if value.Value == "" {
			return ""
		}
		return "`" + value.Value + "`"
	}
	copied := *value
	copied.Style = yaml.FlowStyle
	copied.HeadComment, copied.LineComment, copied.FootComment = "", "", ""
	text, err := yaml.Marshal(&copied)
	if err != nil {
		t.Fatal(err)
	}
	return "`" + strings.Join(strings.Fields(string(text)), " ") + "`"
}

// Of the files for a kube-scheduler of one's own, those for the distributions
// differ in their paths alone.
func TestSchedulerConfigurationsDifferInPathsAlone(t *testing.T) {
	paths := map[string]*strings.Replacer{
		"kubeadm": strings.NewReplacer("/etc/kubernetes/scheduler.conf", "KUBECONFIG", "/etc/kubernetes/gpumem", "FOLDER", "kubeadm", "IT"),
		"rke2":    strings.NewReplacer("/var/lib/rancher/rke2/server/cred/scheduler.kubeconfig", "KUBECONFIG", "/etc/rancher/rke2/gpumem", "FOLDER", "RKE2", "IT"),
		"k3s":     strings.NewReplacer("/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig", "KUBECONFIG", "/etc/rancher/k3s/gpumem", "FOLDER", "k3s", "IT"),
	}
	texts := make(map[string]string)
	for name, replacer := range paths {
		text, err := os.ReadFile(filepath.Join("../config/scheduler", name, "kube-scheduler.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = replacer.Replace(string(text))
	}
	for name, text := range texts {
		if diff := cmp.Diff(texts["kubeadm"], text); diff != "" {
			t.Errorf("kubeadm's and %s's:\n%s", name, diff)
		}
	}
}

// rendered returns the objects of a kind that the chart makes with a file of ci/.
func rendered(t *testing.T, values, kind string) (out []map[string]any) {
	t.Helper()
	for decoder := yaml.NewDecoder(strings.NewReader(helm.Values(t, values))); ; {
		var object map[string]any
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatalf("%s: %v", values, err)
		}
		if object["kind"] == kind {
			out = append(out, object)
		}
	}
}

// at returns what an object has at a path: nil where it has nothing.
func at(object any, path ...string) any {
	for _, key := range path {
		fields, ok := object.(map[string]any)
		if !ok {
			return nil
		}
		object = fields[key]
	}
	return object
}

func list(object any, path ...string) []any {
	items, _ := at(object, path...).([]any)
	return items
}

// What others can make a part hold ends at a limit, before that of the node, and Go's collector
// knows of it.
func TestMemoryHasALimit(t *testing.T) {
	for _, values := range []string{"default", "extender", "existing-secret"} {
		checked := 0
		for _, kind := range []string{"Deployment", "DaemonSet"} {
			for _, object := range rendered(t, values, kind) {
				spec := at(object, "spec", "template", "spec")
				for _, c := range append(list(spec, "initContainers"), list(spec, "containers")...) {
					checked++
					name := fmt.Sprint(values, ": ", at(object, "metadata", "name"), ": ", at(c, "name"))
					if at(c, "resources", "limits", "memory") == nil {
						t.Errorf("%s has no limit of memory", name)
					}
					env := make(map[string]any)
					for _, e := range list(c, "env") {
						env[fmt.Sprint(at(e, "name"))] = e
					}
					if got := at(env["GOMEMLIMIT"], "value"); got != "$(MEMORY_LIMIT_MIB)000000" {
						t.Errorf("%s: GOMEMLIMIT is %v", name, got)
					}
					if got := at(env["MEMORY_LIMIT_MIB"], "valueFrom", "resourceFieldRef"); !cmp.Equal(got, any(map[string]any{"resource": "limits.memory", "divisor": "1Mi"})) {
						t.Errorf("%s: MEMORY_LIMIT_MIB is %v", name, got)
					}
				}
			}
		}
		if checked < 2 {
			t.Errorf("%s: %d containers were checked", values, checked)
		}
	}
}

// TestControllersPodsNameAServiceAccount: OpenShift permits a pod's security context by its ServiceAccount, and its
// administrators grant nothing to the namespace's default account.
func TestControllersPodsNameAServiceAccount(t *testing.T) {
	text, err := render(t, chart, "--kube-version=v1.36.3", "--set=mps.enabled=true")
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile("../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, object := range documents(t, text) {
		if at(object, "spec", "template", "spec", "containers") == nil {
			continue
		}
		checked++
		account := at(object, "spec", "template", "spec", "serviceAccountName")
		if !strings.Contains(string(guide), fmt.Sprintf("--serviceaccount=%v --namespace", account)) {
			t.Errorf("%v %v has the ServiceAccount %v, to which docs/install.md grants nothing on OpenShift", object["kind"], at(object, "metadata", "name"), account)
		}
	}
	if checked < 4 {
		t.Errorf("%d objects were checked, want the scheduler, the device plugin, MPS and the cleanup", checked)
	}
}

// Who reaches the ports of probes and metrics is said: none as it comes. The kubelet is on
// the node of the pod, which a NetworkPolicy lets in anyhow. A policy of the type Ingress
// that has no rule lets in none.
func TestMetricsAreClosed(t *testing.T) {
	controlPlane := []any{map[string]any{"ipBlock": map[string]any{"cidr": "172.30.0.0/24"}}}
	verbs := []any{map[string]any{"ports": []any{map[string]any{"port": 8010}}, "from": controlPlane}}
	monitoring := []any{map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": "monitoring"}}}}
	// The page asks the device plugins what is used.
	page := map[string]any{"ports": []any{map[string]any{"port": 8012}}, "from": []any{map[string]any{"podSelector": map[string]any{"matchLabels": map[string]any{
		"app.kubernetes.io/name": "gpumem", "app.kubernetes.io/instance": "gpumem", "app.kubernetes.io/component": "scheduler",
	}}}}}
	metrics := func(ports ...int) []any {
		var of []any
		for _, port := range ports {
			of = append(of, map[string]any{"port": port})
		}
		return []any{map[string]any{"ports": of, "from": monitoring}}
	}
	for values, want := range map[string]map[string]any{
		"default":         {"gpumem-device-plugin": nil, "gpumem-scheduler": nil},
		"extender":        {"gpumem-device-plugin": nil, "gpumem-scheduler": nil},
		"existing-secret": {"gpumem-device-plugin": nil, "gpumem-extender": verbs},
		"locked-down":     {"gpumem-device-plugin": append(metrics(8012), page), "gpumem-scheduler": metrics(8011, 10259)},
	} {
		got := make(map[string]any)
		for _, policy := range rendered(t, values, "NetworkPolicy") {
			got[fmt.Sprint(at(policy, "metadata", "name"))] = at(policy, "spec", "ingress")
			if !slices.Contains(list(policy, "spec", "policyTypes"), any("Ingress")) {
				t.Errorf("%s: %v lets in all", values, at(policy, "metadata", "name"))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: who may come in (-want +got):\n%s", values, diff)
		}
	}
}
