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

// TestPacking compares all policies on the traces of the folder TRACES, in a world for each list of
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
	for _, w := range worlds {
		t.Run(w.Name, func(t *testing.T) {
			scores := Bench(w, allPolicies(), []int64{42, 43, 44}, []int64{11, 12}, runtime.GOMAXPROCS(0))
			for _, s := range scores {
				if s.Err != nil {
					t.Fatalf("%s: %v", s.Policy, s.Err)
				}
			}
			fmt.Println(w.Report(os.Stdout, scores))
		})
	}
}

// Loads are those of the churn runs of a benchmark.
func Loads() []float64 { return []float64{0.9, 0.95, 1.0, 1.1} }

// World is a trace and what is to be reached on it.
type World struct {
	Name  string
	Trace Trace
	Goals Goals
}

// Goals are what Ours is to reach, beside a rival that it must not fall behind.
type Goals struct {
	Rival      string
	At100      float64 // allocation at 100 % of arrived demand, at least
	At130      float64
	Behind90   float64 // how far allocation at 90 % may be below the rival's; NaN: no matter
	RivalCurve bool    // allocation at 100 and 130 % must reach the rival's
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
		goals := Goals{Rival: "fgd", RivalCurve: true, Behind90: math.NaN()}
		if list == "default" {
			goals.At100 = 95.8
		}
		out = append(out, World{Name: "share-" + list, Trace: t, Goals: goals})
	}
	base := out[max(0, slices.IndexFunc(out, func(w World) bool { return w.Name == "share-default" }))].Trace
	memories := Memories()
	for _, name := range []string{"gib-hetero", "gib-hetero40", "gib-sim"} {
		t, err := base.InGiB(name, memories[name])
		if err != nil {
			return nil, err
		}
		goals := Goals{Rival: "device-best-fit", At100: 94.3, At130: 95.4, Behind90: 0.1}
		out = append(out, World{Name: name, Trace: t, Goals: goals})
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

// Score is what a policy reached in a world.
type Score struct {
	Policy             string
	At90, At100, At130 Spread
	FirstFailure       Spread
	Lost               []Spread // per cent of what was asked for, by Loads
	Err                error
	at90, at100, at130 []float64
	firstFailure       []float64
	lost               [][]float64
}

// Bench runs policies on a world: arrivals with some seeds, churn at all Loads
// with others. It uses as many goroutines as workers.
func Bench(w World, policies []string, arrivals, churn []int64, workers int) []Score {
	scores := make([]Score, len(policies))
	var jobs []func()
	for i, policy := range policies {
		s := &scores[i]
		*s = Score{
			Policy: policy, at90: make([]float64, len(arrivals)), at100: make([]float64, len(arrivals)),
			at130: make([]float64, len(arrivals)), firstFailure: make([]float64, len(arrivals)),
		}
		errs := make([]error, len(arrivals)+len(churn)*len(Loads()))
		for k, seed := range arrivals {
			jobs = append(jobs, func() {
				run, err := Arrive(w.Trace, policy, seed)
				if errs[k] = err; err != nil {
					return
				}
				curve := run.Curve()
				s.at90[k], s.at100[k], s.at130[k], s.firstFailure[k] = curve[90], curve[100], curve[130], run.FirstFailure()
			})
		}
		for l, load := range Loads() {
			s.lost = append(s.lost, make([]float64, len(churn)))
			for k, seed := range churn {
				jobs = append(jobs, func() {
					run, err := Churn(w.Trace, policy, load, seed)
					errs[len(arrivals)+l*len(churn)+k], s.lost[l][k] = err, run.LostPart()
				})
			}
		}
		defer func() { s.sum(errs) }()
	}
	inParallel(jobs, workers)
	return scores
}

func (s *Score) sum(errs []error) {
	s.At90, s.At100, s.At130, s.FirstFailure = spreadOf(s.at90), spreadOf(s.at100), spreadOf(s.at130), spreadOf(s.firstFailure)
	for _, lost := range s.lost {
		s.Lost = append(s.Lost, spreadOf(lost))
	}
	s.Err = cmp.Or(errs...)
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

// Missed says which goals a world's scores miss.
func (g Goals) Missed(scores []Score) []string {
	ours, rival := find(scores, Ours), find(scores, g.Rival)
	var out []string
	least := func(what string, got, want float64) {
		if !(got >= want) {
			out = append(out, fmt.Sprintf("%s %.2f, want %.2f", what, got, want))
		}
	}
	least("a@100", ours.At100.Mean, g.At100)
	least("a@130", ours.At130.Mean, g.At130)
	if g.RivalCurve {
		least("a@100", ours.At100.Mean, rival.At100.Mean)
		least("a@130", ours.At130.Mean, rival.At130.Mean)
	}
	if !math.IsNaN(g.Behind90) {
		least("a@90", ours.At90.Mean, rival.At90.Mean-g.Behind90)
	}
	for i, load := range Loads() {
		if !(ours.Lost[i].Mean <= rival.Lost[i].Mean) {
			out = append(out, fmt.Sprintf("lost at load %.2f %.3f, want %.3f at most", load, ours.Lost[i].Mean, rival.Lost[i].Mean))
		}
	}
	return out
}

func find(scores []Score, policy string) Score {
	return scores[slices.IndexFunc(scores, func(s Score) bool { return s.Policy == policy })]
}

// Report prints a world's scores side by side and what was missed, and returns
// the line that sums it up.
func (w World) Report(out io.Writer, scores []Score) string {
	fmt.Fprintf(out, "%s: mean (lowest to highest over seeds), per cent\n", w.Name)
	fmt.Fprintf(out, "  %-16s %22s %22s %22s %22s", "policy", "a@90", "a@100", "a@130", "first failure")
	for _, load := range Loads() {
		fmt.Fprintf(out, " %22s", fmt.Sprintf("lost at %.2f", load))
	}
	fmt.Fprintln(out)
	for _, s := range scores {
		fmt.Fprintf(out, "  %-16s", s.Policy)
		for _, v := range append([]Spread{s.At90, s.At100, s.At130, s.FirstFailure}, s.Lost...) {
			fmt.Fprintf(out, " %22s", fmt.Sprintf("%.2f (%.2f to %.2f)", v.Mean, v.Low, v.High))
		}
		fmt.Fprintln(out)
	}
	verdict := "met"
	for _, m := range w.Goals.Missed(scores) {
		verdict = "missed"
		fmt.Fprintf(out, "  missed: %s\n", m)
	}
	others := slices.DeleteFunc(slices.Clone(scores), func(s Score) bool { return s.Policy == Ours })
	best := slices.MaxFunc(others, func(a, b Score) int { return cmp.Compare(a.At100.Mean, b.At100.Mean) })
	return fmt.Sprintf("result: packing %s ours=%.2f best-other=%s:%.2f bound=- %s",
		w.Name, find(scores, Ours).At100.Mean, best.Policy, best.At100.Mean, verdict)
}
