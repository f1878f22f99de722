package test

import (
	"encoding/json"
	"os/exec"
	"testing"
)

// TestModulesShareVersions compares the modules whose programs the demo builds. Go compiles a library
// once for each version of it, and most of the time of a first demo is compilation.
func TestModulesShareVersions(t *testing.T) {
	type use struct{ module, version string }
	first := make(map[string]use)
	for _, module := range []string{".", "cmd/gpumem-scheduler", "test", "test/scheduler", "test/cluster/components"} {
		cmd := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
		cmd.Dir = "../" + module
		output, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", module, err)
		}
		var file struct {
			Require []struct{ Path, Version string }
			Replace []struct {
				Old, New struct{ Path, Version string }
			}
		}
		if err := json.Unmarshal(output, &file); err != nil {
			t.Fatalf("%s: %v", module, err)
		}
		replaced := make(map[string]string)
		for _, r := range file.Replace {
			replaced[r.Old.Path] = r.New.Version
		}
		for _, r := range file.Require {
			version, ok := replaced[r.Path]
			if !ok {
				version = r.Version
			}
			if version == "" || r.Version == "v0.0.0" && !ok {
				continue // a folder of this repository
			}
			one, ok := first[r.Path]
			if !ok {
				first[r.Path] = use{module, version}
				continue
			}
			if one.version != version {
				t.Errorf("%s: %s has %s, and %s has %s", r.Path, one.module, one.version, module, version)
			}
		}
	}
	if len(first) < 100 {
		t.Errorf("the modules require %d modules, want 100 or more", len(first))
	}
}
