// Package lint tests the project's rules for Vale: each rule reports the first example of its
// header and accepts the second.
package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestRules(t *testing.T) {
	rules, err := filepath.Glob("styles/gpumem/*.yml")
	if err != nil || len(rules) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	for _, rule := range rules {
		name := strings.TrimSuffix(filepath.Base(rule), ".yml")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(rule)
			if err != nil {
				t.Fatal(err)
			}
			example := func(kind string) string {
				m := regexp.MustCompile(`(?m)^# ` + kind + `: "(.*)"$`).FindSubmatch(text)
				if m == nil {
					t.Fatalf("%s has no line %s: \"…\"", rule, kind)
				}
				return string(m[1])
			}
			if got := vale(t, example("Reported")); !strings.Contains(got, "gpumem."+name) {
				t.Errorf("vale reports %q, want gpumem.%s", got, name)
			}
			if got := vale(t, example("Accepted")); got != "" {
				t.Errorf("vale reports %q, want nothing", got)
			}
		})
	}
}

func vale(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "example.md")
	if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "tool", "vale", "--config=../../.vale.ini", "--output=line", file).CombinedOutput()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Fatal(err)
	}
	return string(out)
}
