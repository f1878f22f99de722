package test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	faultsFound = regexp.MustCompile(`(?s)\n## Faults found\n.*?\n## `)
	commit      = regexp.MustCompile(`\b[0-9a-f]{7}\b`)
	traceOfSeed = regexp.MustCompile("`([a-z0-9-]+)`(?: \\| | \\()(?:seed )?([0-9]+)")
	testCommand = regexp.MustCompile("`(?:cd ([a-z/-]+) && )?go test (?:-run (\\S+) )?(\\S+)`")
)

// faults returns that part of docs/reliability.md.
func faults(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	return faultsFound.FindString(string(page))
}

// Each row of the faults that were found ends with the commits that ended it, which are in the
// history of this one.
func TestFaultsNameCommitsOfTheHistory(t *testing.T) {
	var commits []string
	for line := range strings.Lines(faults(t)) {
		if !strings.HasPrefix(line, "| ") || strings.HasSuffix(strings.TrimSpace(line), "| ended by |") {
			continue
		}
		found := commit.FindAllString(line[strings.LastIndex(strings.TrimRight(line, "| \n"), "|"):], -1)
		if len(found) == 0 {
			t.Errorf("no commit: %s", line)
		}
		commits = append(commits, found...)
	}
	if len(commits) < 40 {
		t.Errorf("%d commits: is the page read?", len(commits))
	}
	if shallow, err := exec.CommandContext(t.Context(), "git", "rev-parse", "--is-shallow-repository").Output(); err != nil || strings.TrimSpace(string(shallow)) != "false" {
		t.Skipf("the history is not here (%q, %v): commits are not looked for", shallow, err)
	}
	for _, name := range commit.FindAllString(faults(t), -1) {
		if out, err := exec.CommandContext(t.Context(), "git", "merge-base", "--is-ancestor", name, "HEAD").CombinedOutput(); err != nil {
			t.Errorf("%s is not in the history: %v %s", name, err, out)
		}
	}
}

// Each trace that the page names is there, of that seed, and there is none that it does not name.
func TestFaultsNameEachTrace(t *testing.T) {
	named := make(map[string]bool)
	for _, found := range traceOfSeed.FindAllStringSubmatch(faults(t), -1) {
		text, err := os.ReadFile(filepath.Join("sim", "testdata", found[1]+".txt"))
		if errors.Is(err, fs.ErrNotExist) {
			t.Errorf("no trace %s", found[1])
		} else if err != nil {
			t.Fatal(err)
		}
		if first, _, _ := strings.Cut(string(text), "\n"); !strings.HasPrefix(first+" ", "seed "+found[2]+" ") {
			t.Errorf("%s: the page says seed %s, and the trace %q", found[1], found[2], first)
		}
		named[found[1]] = true
	}
	traces, err := filepath.Glob(filepath.Join("sim", "testdata", "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range traces {
		if name := strings.TrimSuffix(filepath.Base(file), ".txt"); !named[name] {
			t.Errorf("the page does not name the trace %s", name)
		}
	}
}

// Each row names a trace, a test or a make target that finds the fault, and each of these tests exists.
func TestFaultsNameTestsThatAreThere(t *testing.T) {
	for line := range strings.Lines(faults(t)) {
		isRow := strings.HasPrefix(line, "| ") && commit.MatchString(line[strings.LastIndex(strings.TrimRight(line, "| \n"), "|"):])
		if isRow && !traceOfSeed.MatchString(line) && !testCommand.MatchString(line) && !strings.Contains(line, "`make ") {
			t.Errorf("no test: %s", line)
		}
	}
	commands := testCommand.FindAllStringSubmatch(faults(t), -1)
	if len(commands) < 10 {
		t.Errorf("%d commands: is the page read?", len(commands))
	}
	for _, found := range commands {
		if strings.HasSuffix(found[2], "/NAME") {
			continue // of any trace
		}
		dir := filepath.Join("..", found[1], found[3])
		tests := testsIn(t, dir)
		for want := range strings.SplitSeq(strings.Trim(found[2], "'"), `\|`) {
			isOne := func(name string) bool { return strings.HasPrefix(name, want) }
			if !slices.ContainsFunc(slices.Collect(maps.Keys(tests)), isOne) {
				t.Errorf("%s has no test %s", dir, want)
			}
		}
	}
}
