package replay

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBenchRunsEveryPolicyAlike(t *testing.T) {
	w := World{Name: "fixture", Trace: fixture(), Goals: goals(Goal{Rival: "fgd", Measures: []string{"a@100"}})}
	policies := []string{"fgd", Ours}
	one := Bench(w, policies, []int64{42, 43}, 1)
	two := Bench(w, policies, []int64{42, 43}, 2)
	for i, s := range one {
		if s.Err != nil {
			t.Fatal(s.Err)
		}
		if s.Policy != policies[i] || len(s.Of) != len(measures()) || s.Of[1].Low > s.Of[1].Mean || s.Of[1].Mean > s.Of[1].High || s.Of[1].Mean <= 0 {
			t.Errorf("score %+v of %s is not one", s, policies[i])
		}
	}
	if diff := cmp.Diff(one, two); diff != "" {
		t.Errorf("the number of workers shows:\n%s", diff)
	}
	run, err := Arrive(w.Trace, Ours, 42)
	if err != nil {
		t.Fatal(err)
	}
	if at100 := run.Curve()[100]; at100 != one[1].Of[1].Low && at100 != one[1].Of[1].High {
		t.Errorf("seed 42 reaches %g at 100 %%, and the score is %+v", at100, one[1].Of[1])
	}
	var text strings.Builder
	w.Report(&text, one)
	if lines := strings.Count(text.String(), "\n"); lines != 2+len(policies)+1+len(measures()) {
		t.Errorf("the report has %d lines:\n%s", lines, text.String())
	}
}

func TestBenchTellsErrors(t *testing.T) {
	scores := Bench(World{Trace: fixture()}, []string{"none of them"}, []int64{1}, 1)
	if scores[0].Err == nil || !strings.Contains(scores[0].Err.Error(), `policy "none of them" is not known`) {
		t.Errorf("error %v, want that the policy is not known", scores[0].Err)
	}
}

func TestGoals(t *testing.T) {
	score := func(policy string, means ...float64) (s Score) {
		s.Policy = policy
		for _, mean := range means {
			s.Of = append(s.Of, Spread{Mean: mean})
		}
		return s
	}
	scores := []Score{score("fgd", 90, 93, 94, 1, 5), score("first-fit", 89, 94, 93, 2, 4), score(Ours, 90, 93.8, 93.9, 1.4, math.NaN())}
	tests := map[string]struct {
		goal Goal
		want []string
	}{
		"a rival": {Goal{Rival: "fgd", Measures: []string{"a@90", "a@100", "a@130"}}, []string{
			"met    a@90: 90.00, fgd has 90.00, and 0.0 points are allowed",
			"met    a@100: 93.80, fgd has 93.00, and 0.0 points are allowed",
			"missed a@130: 93.90, fgd has 94.00, and 0.0 points are allowed",
		}},
		"of what is lost less is better": {Goal{Rival: "first-fit", Measures: []string{"lost at 0.9"}}, []string{
			"met    lost at 0.9: 1.40, first-fit has 2.00, and 0.0 points are allowed",
		}},
		"a goal that another stands against": {Goal{Rival: "fgd", Measures: []string{"a@90", "lost at 0.9"}, Against: "a@100"}, []string{
			"met    a@90: 90.00, fgd has 90.00, and 0.0 points are allowed",
			"missed lost at 0.9: 1.40, fgd has 1.00, and 0.0 points are allowed; docs/packing.md has the curve between it and a@100",
		}},
		"the best by each measure": {Goal{Measures: []string{"a@100", "lost at 0.9", "lost at 1.0"}, Slack: 0.3}, []string{
			"met    a@100: 93.80, the best of the others, first-fit, has 94.00, and 0.3 points are allowed",
			"missed lost at 0.9: 1.40, the best of the others, fgd, has 1.00, and 0.3 points are allowed",
			"missed lost at 1.0: NaN, the best of the others, first-fit, has 4.00, and 0.3 points are allowed",
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.goal.check(scores)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWorlds(t *testing.T) {
	folder := t.TempDir()
	if _, err := Worlds(folder); err == nil || !strings.Contains(err.Error(), "there is no openb_pod_list_*.csv") {
		t.Errorf("error %v, want what is missing", err)
	}
	const pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nx,1000,10,1,500\n"
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(podList+"new.csv", pods)
	if _, err := Worlds(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want that the nodes are missing", err)
	}
	write(nodeList, "sn,cpu_milli,memory_mib,gpu,model\na,96000,200,8,G2\n")
	write(podList+"default.csv", pods)
	worlds, err := Worlds(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, w := range worlds {
		names = append(names, w.Name)
	}
	if diff := cmp.Diff([]string{"share-default", "share-new", "gib-hetero", "gib-hetero40", "gib-sim"}, names); diff != "" {
		t.Errorf("worlds (-want +got):\n%s", diff)
	}
}
