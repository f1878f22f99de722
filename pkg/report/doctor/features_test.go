package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/kube/tabletest"
)

func TestTableOfFeatures(t *testing.T) {
	table := "| feature | stage | since | turned on by |\n|---|---|---|---|\n"
	for _, f := range features() {
		if !slices.Contains([]stage{alpha, beta, stable}, f.Stage) || f.Name == "" || f.Since == "" || f.Setting == "" || f.Doc == "" || f.Stage == stable && f.isUsed != nil {
			t.Errorf("want a name, a stage, a version, a switch and a page, and no use of a stable feature: %+v", f)
		}
		table += fmt.Sprintf("| [%s](%s) | %s | %s | %s |\n", f.Name, f.Doc, f.Stage, f.Since, f.Setting)
	}
	tabletest.Between(t, "docs/stability.md", "pkg/report/doctor/features.go", table)
}

// The default installation uses only stable features. Notes list alpha and beta features in use.
func TestFeaturesInUse(t *testing.T) {
	s := healthy(t)
	if found := checkFeatures(s, findInstallation(s)); len(found) > 0 {
		t.Errorf("findings about an installation with defaults: %v", found)
	}
	plugin, scheduler := &s.DaemonSets[0], &s.Deployments[0]
	mps := *plugin.DeepCopy()
	mps.ObjectMeta = meta("mps", "gpumem-mps")
	s.DaemonSets = append(s.DaemonSets, mps)
	plugin = &s.DaemonSets[0]
	spec := &plugin.Spec.Template.Spec.Containers[0]
	spec.Args = append(spec.Args, "--cores=true", "--shares=true", "--mig", "--cdi-hook=/usr/bin/nvidia-cdi-hook", "--claims")
	extender := &scheduler.Spec.Template.Spec.InitContainers[0]
	extender.Args = append(extender.Args, "--page", "--label-pods")
	key := s.Names.Inventory()
	s.Nodes[0].Annotations[key] = strings.Replace(s.Nodes[0].Annotations[key], `"enforcement":"advisory"`, `"enforcement":"kernel"`, 1)
	var got []string
	for _, f := range Examine(s) {
		if f.Check == "features" {
			got = append(got, fmt.Sprintf("%s: %s (%s)", f.Severity, f.Wrong, f.Fix))
		}
	}
	want := []string{
		"note: uses features of the stage alpha: level mps, level kernel, shares, MIG instances, CDI hook, claims (the table of features lists the promises of each stage)",
		"note: uses features of the stage beta: cores, labels of pods, page (the table of features lists the promises of each stage)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}
