package replay

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// rivals are the policies that have been the best in some world of those that anyPolicy knows.
func rivals() []string { return []string{"fgd", "device-best-fit", "first-fit", "best-fit"} }

// TestPacking compares policies on the traces of the folder TRACES, in a world for each list of
// pods: with arrivals until the fleet is full, and with pods that come and go.
func TestPacking(t *testing.T) {
	folder := os.Getenv("TRACES")
	if folder == "" {
		t.Skip("TRACES does not name a folder with the trace cluster-trace-gpu-v2023; TestBenchRunsEveryPolicyAlike runs the same on a fixture")
	}
	worlds, err := Worlds(folder)
	if err != nil {
		t.Fatal(err)
	}
	var seeds []int64
	for seed := range int64(10) {
		seeds = append(seeds, 42+seed)
	}
	for _, w := range worlds {
		t.Run(w.Name, func(t *testing.T) {
			scores := Bench(w, append([]string{Ours}, rivals()...), seeds, runtime.GOMAXPROCS(0))
			for _, s := range scores {
				if s.Err != nil {
					t.Fatalf("%s: %v", s.Policy, s.Err)
				}
			}
			w.Report(os.Stdout, scores)
		})
	}
}

// measure is what is compared of policies, in per cent.
type measure struct {
	name    string
	percent int     // allocation of the capacity where so much has arrived
	load    float64 // or else, what is lost of what was asked for at this load
}

func measures() []measure {
	return []measure{{"a@90", 90, 0}, {"a@100", 100, 0}, {"a@130", 130, 0}, {"lost at 0.9", 0, 0.9}, {"lost at 1.0", 0, 1}}
}

// measured runs a policy once, with pods that leave at a load or, at none, with arrivals, and returns
// what each measure of that run has.
func measured(t Trace, policy string, load float64, seed int64) (map[string]float64, error) {
	out := make(map[string]float64)
	if load > 0 {
		run, err := Churn(t, policy, load, seed)
		for _, m := range measures() {
			if m.load == load {
				out[m.name] = run.LostPart()
			}
		}
		return out, err
	}
	run, err := Arrive(t, policy, seed)
	if err != nil {
		return nil, err
	}
	curve := run.Curve()
	for _, m := range measures() {
		if m.load == 0 {
			out[m.name] = curve[m.percent]
		}
	}
	return out, nil
}

// World is a trace and what is to be reached on it.
type World struct {
	Name  string
	Trace Trace
	Goals []Goal
}

// Goal is that Ours is as good as a rival by some measures, but for so many points.
type Goal struct {
	Rival    string // empty: the best of all
	Measures []string
	Slack    float64
	Against  string // the measure that a better figure would cost; docs/packing.md has the curve
}

// goals returns what is to be reached in all worlds, and more.
func goals(more ...Goal) []Goal {
	return append(more,
		Goal{Measures: []string{"a@90", "a@100", "a@130"}, Slack: 0.3},
		Goal{Measures: []string{"lost at 0.9", "lost at 1.0"}, Slack: 0.3, Against: "a@100"})
}

// Memories returns how much GPU memory the models of the openb trace are taken
// to have, by the name of the world. Those of G2 and G3 are assumptions: the
// trace does not tell which GPUs these are.
func Memories() map[string]GiB {
	return map[string]GiB{
		"gib-hetero":   {"T4": 16, "P100": 16, "V100M16": 16, "G2": 24, "A10": 24, "V100M32": 32, "G3": 80},
		"gib-hetero40": {"T4": 16, "P100": 16, "V100M16": 16, "G2": 40, "A10": 24, "V100M32": 32, "G3": 80},
		"gib-sim":      {"T4": 14, "P100": 15, "V100M16": 15, "G2": 19, "A10": 22, "V100M32": 31, "G3": 29},
	}
}

// nodeList is the file of a folder of traces that has the nodes.
const nodeList = "openb_node_list_gpu_node.csv"

const podList = "openb_pod_list_"

// Worlds reads a folder of openb traces: a world of shares for each list of
// pods, and those of Memories for the default list or else the first.
func Worlds(folder string) ([]World, error) {
	lists, err := filepath.Glob(filepath.Join(folder, podList+"*.csv"))
	if err != nil {
		return nil, err
	}
	if len(lists) == 0 {
		return nil, fmt.Errorf("%s: there is no %s*.csv; want the lists of pods and %s of the trace cluster-trace-gpu-v2023", folder, podList, nodeList)
	}
	var out []World
	for _, path := range lists {
		list := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), podList), ".csv")
		t, err := readFiles(list, filepath.Join(folder, nodeList), path)
		if err != nil {
			return nil, err
		}
		more := []Goal{{Rival: "fgd", Measures: []string{"a@100", "a@130"}}}
		if slices.ContainsFunc(t.Pods, func(p Pod) bool { return p.Models != "" }) {
			more = append(more, Goal{Rival: "first-fit", Measures: []string{"a@100"}})
		}
		out = append(out, World{Name: "share-" + list, Trace: t, Goals: goals(more...)})
	}
	base := out[max(0, slices.IndexFunc(out, func(w World) bool { return w.Name == "share-default" }))].Trace
	memories := Memories()
	for _, name := range []string{"gib-hetero", "gib-hetero40", "gib-sim"} {
		t, err := base.InGiB(name, memories[name])
		if err != nil {
			return nil, err
		}
		out = append(out, World{Name: name, Trace: t, Goals: goals(
			Goal{Rival: "device-best-fit", Measures: []string{"a@90", "a@100", "a@130"}},
			Goal{Rival: "device-best-fit", Measures: []string{"lost at 0.9", "lost at 1.0"}, Slack: 0.2, Against: "a@100"},
		)})
	}
	return out, nil
}

func readFiles(name, nodes, pods string) (Trace, error) {
	n, err := os.Open(nodes)
	if err != nil {
		return Trace{}, err
	}
	defer n.Close()
	p, err := os.Open(pods)
	if err != nil {
		return Trace{}, err
	}
	defer p.Close()
	return ReadOpenB(name, n, p)
}

// Spread is a measure over seeds.
type Spread struct{ Mean, Low, High float64 }

func spreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{math.NaN(), math.NaN(), math.NaN()}
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return Spread{sum / float64(len(values)), slices.Min(values), slices.Max(values)}
}

// Score is what a policy reached in a world, by each of the measures.
type Score struct {
	Policy string
	Of     []Spread
	Err    error
}

// Bench runs policies on a world with some seeds. It uses as many goroutines as workers.
func Bench(w World, policies []string, seeds []int64, workers int) []Score {
	loads := []float64{0}
	for _, m := range measures() {
		if !slices.Contains(loads, m.load) {
			loads = append(loads, m.load)
		}
	}
	var jobs []func()
	runs, errs := make([][]map[string]float64, len(policies)), make([][]error, len(policies))
	for i, policy := range policies {
		runs[i], errs[i] = make([]map[string]float64, len(loads)*len(seeds)), make([]error, len(loads)*len(seeds))
		for k := range runs[i] {
			jobs = append(jobs, func() {
				runs[i][k], errs[i][k] = measured(w.Trace, policy, loads[k/len(seeds)], seeds[k%len(seeds)])
			})
		}
	}
	inParallel(jobs, workers)
	scores := make([]Score, len(policies))
	for i, policy := range policies {
		scores[i] = Score{Policy: policy, Err: cmp.Or(errs[i]...)}
		for _, m := range measures() {
			var values []float64
			for _, run := range runs[i] {
				if v, ok := run[m.name]; ok {
					values = append(values, v)
				}
			}
			scores[i].Of = append(scores[i].Of, spreadOf(values))
		}
	}
	return scores
}

func inParallel(jobs []func(), workers int) {
	next := make(chan func())
	var wg sync.WaitGroup
	for range max(1, workers) {
		wg.Go(func() {
			for job := range next {
				job()
			}
		})
	}
	for _, job := range jobs {
		next <- job
	}
	close(next)
	wg.Wait()
}

// check says of each measure of a goal whether it is met, and by which figures.
func (g Goal) check(scores []Score) (lines []string) {
	for i, m := range measures() {
		if !slices.Contains(g.Measures, m.name) {
			continue
		}
		sign := 1.0 // of a measure of which more is better
		if m.load > 0 {
			sign = -1
		}
		ours, rival := scores[slices.IndexFunc(scores, func(s Score) bool { return s.Policy == Ours })], Score{}
		for _, s := range scores {
			if s.Policy == g.Rival || g.Rival == "" && s.Policy != Ours && (rival.Policy == "" || sign*s.Of[i].Mean > sign*rival.Of[i].Mean) {
				rival = s
			}
		}
		verdict := "missed"
		if sign*ours.Of[i].Mean >= sign*rival.Of[i].Mean-g.Slack {
			verdict = "met"
		}
		name := rival.Policy
		if g.Rival == "" {
			name = "the best of the others, " + name + ","
		}
		line := fmt.Sprintf("%-6s %s: %.2f, %s has %.2f, and %.1f points are allowed", verdict, m.name, ours.Of[i].Mean, name, rival.Of[i].Mean, g.Slack)
		if verdict == "missed" && g.Against != "" {
			line += "; docs/packing.md has the curve between it and " + g.Against
		}
		lines = append(lines, line)
	}
	return lines
}

// Report prints a world's scores side by side, and its goals as met or missed.
func (w World) Report(out io.Writer, scores []Score) {
	fmt.Fprintf(out, "%s: mean (lowest to highest over seeds), per cent\n  %-16s", w.Name, "policy")
	for _, m := range measures() {
		fmt.Fprintf(out, " %22s", m.name)
	}
	fmt.Fprintln(out)
	for _, s := range scores {
		fmt.Fprintf(out, "  %-16s", s.Policy)
		for _, v := range s.Of {
			fmt.Fprintf(out, " %22s", fmt.Sprintf("%.2f (%.2f to %.2f)", v.Mean, v.Low, v.High))
		}
		fmt.Fprintln(out)
	}
	for _, g := range w.Goals {
		for _, line := range g.check(scores) {
			fmt.Fprintf(out, "  %s\n", line)
		}
	}
}
