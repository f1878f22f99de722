package test

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Names that people use do not go without a word: see docs/stability.md.
func TestNamesThatPeopleUse(t *testing.T) {
	const file = "names.txt"
	is := names(t)
	text, err := os.ReadFile(file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	changelog, err := os.ReadFile("../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	was := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, name := range was {
		words := strings.Fields(name)
		if name != "" && !slices.Contains(is, name) && !bytes.Contains(changelog, []byte("`"+words[len(words)-1]+"`")) {
			t.Errorf("%s is gone, and CHANGELOG.md does not say so: docs/stability.md promises a warning first", name)
			is = append(is, name)
		}
	}
	slices.Sort(is)
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(is, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, name := range is {
		if !slices.Contains(was, name) {
			t.Errorf("%s is new: make update", name)
		}
	}
}

// names returns the names that people use, sorted: "value policy", "flag gpumem-extender --policy".
func names(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{"resource gpumem.dev/gpu-mem": true, "resource gpumem.dev/gpu-core": true}
	var values map[string]any
	if err := yaml.Unmarshal([]byte(read(t, "../charts/gpumem/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	leaves("", values, func(path string) { found["value "+path] = true })
	for program, folders := range map[string][]string{
		"gpumem-extender": {"../cmd/gpumem-extender", "../pkg/process", "../pkg/scheduler/service"}, "gpumem-device-plugin": {"../cmd/gpumem-device-plugin", "../pkg/process"},
		"kubectl-inspect-gpumem": {"../cmd/kubectl-inspect-gpumem", "../pkg/cli"},
	} {
		for _, folder := range folders {
			for _, flag := range flagsIn(t, folder) {
				found["flag "+program+" --"+flag] = true
			}
		}
	}
	for _, match := range regexp.MustCompile(`(?m)^ +- alert: (\S+)$`).FindAllStringSubmatch(read(t, "../charts/gpumem/files/rules.yaml"), -1) {
		found["alert "+match[1]] = true
	}
	tables := read(t, "../docs/pods.md") + read(t, "../docs/reference.md")
	row := regexp.MustCompile("(?m)^\\| `(gpumem.dev/[a-z-]+)`")
	for _, match := range row.FindAllStringSubmatch(tables, -1) {
		found["annotation "+match[1]] = true
	}
	for _, match := range row.FindAllStringSubmatch(read(t, "../docs/routers.md"), -1) {
		found["label "+match[1]] = true
	}
	for _, metric := range metricsIn(tables) {
		found["metric "+metric] = true
	}
	return slices.Sorted(maps.Keys(found))
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// leaves tells of what has no more keys below it.
func leaves(path string, value map[string]any, tell func(string)) {
	for key, below := range value {
		at := strings.TrimPrefix(path+"."+key, ".")
		if more, ok := below.(map[string]any); ok && len(more) > 0 {
			leaves(at, more, tell)
			continue
		}
		tell(at)
	}
}

// flagsIn returns the names of the flags that the code in a folder adds.
func flagsIn(t *testing.T, folder string) (flags []string) {
	t.Helper()
	added := regexp.MustCompile(`Var(?:P)?\(&?[^,()]+, "([a-z-]+)",`)
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, match := range added.FindAllStringSubmatch(read(t, path), -1) {
			flags = append(flags, match[1])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return flags
}

// metricsIn returns the names of the metrics in the tables of a page. The head of a table has
// what they begin with.
func metricsIn(page string) (metrics []string) {
	head, name := regexp.MustCompile("^\\| `(gpumem_[a-z_]+_)…` \\|"), regexp.MustCompile("`([a-z_]+)(?:\\{[a-z,]+\\})?`")
	prefix := ""
	for line := range strings.Lines(page) {
		if match := head.FindStringSubmatch(line); match != nil {
			prefix = match[1]
		} else if cells := strings.Split(line, "|"); prefix != "" && len(cells) > 2 {
			for _, match := range name.FindAllStringSubmatch(cells[1], -1) {
				metrics = append(metrics, prefix+match[1])
			}
		} else {
			prefix = ""
		}
	}
	return metrics
}

// Each trace of the simulation has its row in docs/reliability.md, with its seed; each commit and
// each test that the page names is there.
func TestTheRecordOfFaults(t *testing.T) {
	page := read(t, "../docs/reliability.md")
	traces, err := filepath.Glob("sim/testdata/*.txt")
	if err != nil || len(traces) == 0 {
		t.Fatal(traces, err)
	}
	for _, trace := range traces {
		name, seed := strings.TrimSuffix(filepath.Base(trace), ".txt"), strings.Fields(read(t, trace))[1]
		if !strings.Contains(page, "| `"+name+"` | "+seed+" |") && !regexp.MustCompile("`"+name+"`\\s+\\((?:seed )?"+seed+"\\)").MatchString(page) {
			t.Errorf("docs/reliability.md has no trace %s of seed %s", name, seed)
		}
	}
	for _, match := range regexp.MustCompile(`(?:cd (\S+) && )?go test -run (Test\w+) (\.[\w/]*)`).FindAllStringSubmatch(page, -1) {
		folder := filepath.Join("..", match[1], match[3])
		there := func(name string) bool { return strings.HasPrefix(name, match[2]) }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(testsIn(t, folder))), there) {
			t.Errorf("%s: there is no such test in %s", match[0], folder)
		}
	}
	if shallow, err := exec.CommandContext(t.Context(), "git", "rev-parse", "--is-shallow-repository").Output(); err != nil || strings.TrimSpace(string(shallow)) != "false" {
		t.Logf("the commits are not looked up: no whole history here (%s, %v)", shallow, err)
		return
	}
	commits := regexp.MustCompile(`\b[0-9a-f]{7}\b`).FindAllString(page, -1)
	if len(commits) < 20 {
		t.Fatalf("the page names %d commits", len(commits))
	}
	for _, commit := range commits {
		if output, err := exec.CommandContext(t.Context(), "git", "merge-base", "--is-ancestor", commit, "HEAD").CombinedOutput(); err != nil {
			t.Errorf("commit %s is not in the history: %v %s", commit, err, output)
		}
	}
}
