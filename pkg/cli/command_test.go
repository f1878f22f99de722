package cli_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

func TestNothingIsChanged(t *testing.T) {
	client := fake.NewClientset(clitest.OddCluster(t)...)
	for _, args := range [][]string{{}, {"-d"}, {"gpu-a"}, {"-o", "json"}} {
		_, _, _ = clirun.Inspect(client, args...)
	}
	for _, a := range client.Actions() {
		if !slices.Contains([]string{"get", "list"}, a.GetVerb()) {
			t.Errorf("the command did %s %s", a.GetVerb(), a.GetResource())
		}
	}
}

func TestForbidden(t *testing.T) {
	forbid := func(what string) *fake.Clientset {
		client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)))
		clitest.Forbid(client, what)
		return client
	}
	t.Run("pods", func(t *testing.T) {
		stdout, stderr, err := clirun.Inspect(forbid("pods"))
		if err == nil || !strings.Contains(stderr, "warning: pods: pods is forbidden: ask your administrator") {
			t.Errorf("error %v, stderr %s", err, stderr)
		}
		if !strings.Contains(stdout, "?/16") || strings.Contains(stdout, "0/16") {
			t.Errorf("what pods hold is not known, and the table says:\n%s", stdout)
		}
		stdout, _, _ = clirun.Inspect(forbid("pods"), "gpus")
		if !strings.Contains(stdout, "? is unknown: the pods could not be listed.") || !regexp.MustCompile(`\?\s+Healthy`).MatchString(stdout) {
			t.Errorf("how many pods there are is not known, and the GPUs are:\n%s", stdout)
		}
		stdout, _, _ = clirun.Inspect(forbid("pods"), "-o", "json")
		var r inspect.Report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		if !r.RequestedUnknown || r.Total.RequestedMiB != nil || r.Nodes[0].Requested != nil || r.Nodes[0].GPUs[0].Requested != nil {
			t.Errorf("what pods hold is not known, and the JSON says:\n%s", stdout)
		}
	})
	t.Run("nodes", func(t *testing.T) {
		stdout, _, err := clirun.Inspect(forbid("nodes"))
		if !apierrors.IsForbidden(err) || stdout != "" {
			t.Errorf("error %v, stdout %s", err, stdout)
		}
	})
}

func TestMistakesInFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"format":          {[]string{"-o", "xml"}, []string{`--output is "xml", want one of wide, name, custom-columns=, json, yaml, jsonpath=`}},
		"selector":        {[]string{"-l", "a in"}, []string{"--selector: "}},
		"name and label":  {[]string{"gpu-a", "-l", "a=b"}, []string{"exclude each other"}},
		"empty name":      {[]string{""}, []string{"the name of a node is empty"}},
		"details of name": {[]string{"-d", "-o", "name"}, []string{"--details does not work"}},
		"domain":          {[]string{"--resource-domain", "not a domain"}, []string{"--resource-domain: ", "not a domain"}},
		"unknown":         {[]string{"--nope"}, []string{"unknown flag: --nope", "See 'kubectl inspect gpumem --help'"}},
		"too few":         {[]string{"cordon", "gpu-a"}, []string{"no GPU of node gpu-a is named: add its index or UUID"}},
		"all at once":     {[]string{"x", "-l", "a in", "-o", "xml"}, []string{"--output", "--selector:", "exclude each other"}},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, _, err := clirun.Inspect(fake.NewClientset(), tc.args...)
			if err == nil {
				t.Fatal("no error")
			}
			if stdout != "" {
				t.Errorf("stdout: %s", stdout)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
}

func TestCompletion(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"nodes that offer something": {[]string{"gpu-"}, []string{"gpu-a", "gpu-bad", "gpu-c"}},
		"not twice":                  {[]string{"gpu-a", "gpu-"}, []string{"gpu-bad", "gpu-c"}},
		"formats":                    {[]string{"-o", ""}, []string{"wide", "name", "custom-columns=", "json", "yaml", "jsonpath=", "jsonpath-file=", "go-template=", "go-template-file="}},
		"namespaces":                 {[]string{"-n", "m"}, []string{"ml"}},
		"pods, misspelt ones too":    {[]string{"explain", "-n", "ml", "odd"}, []string{"odd-resource"}},
	} {
		t.Run(name, func(t *testing.T) {
			misspelt := kubetest.With(kubetest.Pod(t, "ml/odd-resource", "", 0), func(p *v1.Pod) {
				p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"gpumem.dev/gpu-memory": resource.MustParse("3")}
			})
			objects := append(clitest.OddCluster(t), misspelt, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ml"}}, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
			stdout, _, err := clirun.Inspect(fake.NewClientset(objects...), append([]string{"__complete"}, tc.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(stdout) {
				if line = strings.TrimSpace(line); !strings.HasPrefix(line, ":") {
					got = append(got, line)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, arg := range []string{"--help", "--version", "-h"} {
		stdout, stderr, err := clirun.Inspect(nil, arg)
		if err != nil || stderr != "" || !strings.Contains(stdout, "kubectl inspect gpumem") {
			t.Errorf("%s: error %v, stderr %q, stdout %q", arg, err, stderr, stdout)
		}
	}
}

// The help of a command describes only its own flags. The command options prints the flags of all commands.
func TestHelpFitsAScreen(t *testing.T) {
	commands := [][]string{{"--help"}, {"options"}}
	for _, name := range []string{"nodes", "gpus", "pods", "top", "namespaces", "explain", "fit", "cordon", "uncordon", "drain", "defrag", "doctor", "version"} {
		commands = append(commands, []string{name, "--help"})
	}
	for _, c := range commands {
		stdout, _, err := clirun.Inspect(nil, c...)
		if shared := strings.Contains(stdout, "--kubeconfig"); err != nil || shared != (c[0] == "options") {
			t.Errorf("%v: error %v, shared flags %t:\n%s", c, err, shared, stdout)
		}
		for line := range strings.Lines(stdout) {
			if len(line) > 81 {
				t.Errorf("%v: %d columns: %s", c, len(line)-1, line)
			}
		}
	}
}

// FuzzRun sets every annotation that the command reads to arbitrary text.
func FuzzRun(f *testing.F) {
	f.Add(`{"v":1,"unitMiB":1024,"gpus":[{"uuid":"GPU-1","index":5,"memoryMiB":16384,"units":16,"healthy":true}]}`,
		`{"v":1,"enforcement":"mps","gpus":[{"uuid":"GPU-1","index":5,"units":3}]}`, "2", int64(3))
	f.Add(`{"v":1,"unitMiB":9223372036854775807,"gpus":[]}`, `[]`, "", int64(-1))
	f.Fuzz(func(t *testing.T, inventory, assignment, count string, units int64) {
		names := kubetest.Names(t)
		node := kubetest.Node(t, "n", gpu.Inventory{})
		node.Annotations = map[string]string{names.Inventory(): inventory}
		annotations := map[string]string{names.Assignment(): assignment, names.Count(): count}
		client := fake.NewClientset(node,
			kubetest.With(kubetest.Pod(t, "a/bound", "n", units), func(p *v1.Pod) { p.Annotations = annotations }),
			kubetest.With(kubetest.Pod(t, "a/waits", "", units), func(p *v1.Pod) { p.Annotations = annotations }))
		for _, args := range [][]string{{"-o", "wide"}, {"-d", "-o", "wide"}, {"-o", "json"}, {"-o", "yaml"}} {
			_, _, _ = clirun.Inspect(client, args...)
		}
	})
}

// FuzzArguments runs arbitrary arguments: the command succeeds or prints an error, and JSON output is
// valid.
func FuzzArguments(f *testing.F) {
	f.Add("-o wide -d -n a n1 n2")
	f.Add("-A -l a=b,c!=d --no-headers")
	f.Add("-ojson --resource-domain x.y")
	f.Add("-o yaml --resource-domain x..y")
	f.Add("--selector ,, -o= node/n")
	f.Add("__complete -n")
	f.Fuzz(func(t *testing.T, line string) {
		stdout, _, err := clirun.Inspect(fake.NewClientset(kubetest.Node(t, "n", gpu.Inventory{})), strings.Fields(line)...)
		if err != nil && err.Error() == "" {
			t.Errorf("%q: an error that says nothing", line)
		}
		if strings.HasPrefix(stdout, "{") && !json.Valid([]byte(stdout)) {
			t.Errorf("%q: broken JSON: %s", line, stdout)
		}
	})
}

func TestAMisspeltCommand(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), kubetest.Node(t, "tops", gpu.Inventory{}))
	for _, tc := range []struct {
		args []string
		want string // empty: no note
	}{
		{[]string{"expain", "ml/waits"}, "There is no node expain: did you mean the command explain?\n"},
		{[]string{"gpu-b"}, ""},
		{[]string{"gpu-x-1", "expain"}, ""},
		{[]string{"tops"}, ""},
		{[]string{"nodes", "expain"}, ""},
	} {
		_, stderr, _ := clirun.Inspect(client, tc.args...)
		if got := strings.Contains(stderr, "did you mean"); got != (tc.want != "") || !strings.Contains(stderr, tc.want) {
			t.Errorf("%q: want %q in %q", tc.args, tc.want, stderr)
		}
	}
}

func TestHelpOfTheNamespace(t *testing.T) {
	for command, want := range map[string]string{
		"explain": "Namespace of the pod, unless", "defrag": "Namespace of the pod, unless", "drain": "Has no effect here", "doctor": "Namespace whose ResourceQuotas are checked",
		"pods": "List only the pods of this namespace", "nodes": "List only the pods of this namespace",
	} {
		stdout, _, err := clirun.Inspect(nil, command, "--help")
		if err != nil || strings.Count(stdout, "--namespace string") != 1 || !strings.Contains(stdout, want) {
			t.Errorf("%s: error %v, want %q in:\n%s", command, err, want, stdout)
		}
	}
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), kubetest.Pod(t, "ml/waits", "", 3))
	for _, args := range [][]string{{"explain", "-n", "ml", "waits"}, {"-n", "ml", "explain", "waits"}} {
		if stdout, _, err := clirun.Inspect(client, args...); err != nil || !strings.HasPrefix(stdout, "Pod ml/waits ") {
			t.Errorf("%q: error %v, got:\n%s", args, err, stdout)
		}
	}
}
