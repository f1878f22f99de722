package replay

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBenchRunsEveryPolicyAlike(t *testing.T) {
	w := World{Name: "fixture", Trace: fixture(), Goals: Goals{Rival: "fgd", RivalCurve: true, Behind90: math.NaN()}}
	policies := []string{"fgd", Ours}
	one := Bench(w, policies, []int64{42, 43}, []int64{11}, 1)
	two := Bench(w, policies, []int64{42, 43}, []int64{11}, 2)
	for i, s := range one {
		if s.Err != nil {
			t.Fatal(s.Err)
		}
		if s.Policy != policies[i] || s.At100.Low > s.At100.Mean || s.At100.Mean > s.At100.High || s.At100.Mean <= 0 || len(s.Lost) != len(Loads()) {
			t.Errorf("score %+v of %s is not one", s, policies[i])
		}
		if diff := cmp.Diff([]Spread{s.At90, s.At100, s.At130}, []Spread{two[i].At90, two[i].At100, two[i].At130}); diff != "" {
			t.Errorf("%s differs with the number of workers:\n%s", s.Policy, diff)
		}
		if diff := cmp.Diff(s.Lost, two[i].Lost); diff != "" {
			t.Errorf("%s loses otherwise with other workers:\n%s", s.Policy, diff)
		}
	}
	var text strings.Builder
	line := w.Report(&text, one)
	if !strings.HasPrefix(line, "result: packing fixture ours=") || !strings.Contains(line, " best-other=fgd:") || !strings.Contains(line, " bound=- ") {
		t.Errorf("line %q", line)
	}
	if missed := strings.Contains(text.String(), "missed:"); missed != strings.HasSuffix(line, " missed") {
		t.Errorf("line %q does not say what the report says:\n%s", line, text.String())
	}
}

func TestBenchTellsErrors(t *testing.T) {
	scores := Bench(World{Trace: fixture()}, []string{"none of them"}, []int64{1}, []int64{1}, 1)
	if scores[0].Err == nil || !strings.Contains(scores[0].Err.Error(), `policy "none of them" is not known`) {
		t.Errorf("error %v, want that the policy is not known", scores[0].Err)
	}
}

func TestGoals(t *testing.T) {
	score := func(policy string, at90, at100, at130, lost float64) Score {
		s := Score{Policy: policy, At90: Spread{Mean: at90}, At100: Spread{Mean: at100}, At130: Spread{Mean: at130}}
		s.Lost = slices.Repeat([]Spread{{Mean: lost}}, len(Loads()))
		return s
	}
	goals := Goals{Rival: "fgd", At100: 94.3, At130: 95.4, Behind90: 0.1}
	rival := score("fgd", 90, 93, 94, 1)
	tests := map[string]struct {
		ours  Score
		goals Goals
		want  int
	}{
		"all is met":                     {score(Ours, 89.91, 94.3, 95.4, 1), goals, 0},
		"too far behind at 90":           {score(Ours, 89.8, 94.3, 95.4, 1), goals, 1},
		"too little at the end":          {score(Ours, 90, 94.29, 95.39, 1), goals, 2},
		"more is lost at each load":      {score(Ours, 90, 95, 96, 1.001), goals, len(Loads())},
		"the rival's curve, not reached": {score(Ours, 0, 92, 93, 0), Goals{Rival: "fgd", RivalCurve: true, Behind90: math.NaN()}, 2},
		"what is no number is not met":   {score(Ours, 90, math.NaN(), 96, 0), goals, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.goals.Missed([]Score{rival, tc.ours}); len(got) != tc.want {
				t.Errorf("missed %q, want %d", got, tc.want)
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
