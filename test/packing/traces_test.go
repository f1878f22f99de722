package packing

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sync/errgroup"
)

// The files of the trace cluster-trace-gpu-v2023 in the folder that TRACES names.
const (
	nodeList = "openb_node_list_gpu_node.csv"
	podList  = "openb_pod_list_"
	curves   = "openb_published_allocation.csv"
)

var update = flag.Bool("update", false, "record the figures of today")

// figures are means of two orders of the pods, in per cent: the allocation of the capacity when 100 and 130 % of
// it have arrived, and the part of the requested memory that is rejected at loads of 0.9 and 1.0 when
// pods leave.
type figures struct{ At100, At130, LostAt09, LostAt10 float64 }

// compareFigures runs policies on a trace and compares their figures with the recorded ones.
func compareFigures(t *testing.T, trace Trace, policies []string) {
	t.Helper()
	const file = "testdata/figures.json"
	got := make(map[string]figures)
	fmt.Fprintf(t.Output(), "%-16s %10s %10s %12s %12s\n", "policy", "at 100 %", "at 130 %", "lost at 0.9", "lost at 1.0")
	for _, policy := range policies {
		f, err := measure(trace, policy)
		if err != nil {
			t.Fatal(err)
		}
		got[policy] = f
		fmt.Fprintf(t.Output(), "%-16s %10.2f %10.2f %12.2f %12.2f\n", policy, f.At100, f.At130, f.LostAt09, f.LostAt10)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	recorded := make(map[string]map[string]figures) // by trace and policy
	if err := json.Unmarshal(text, &recorded); err != nil {
		t.Fatal(err)
	}
	switch diff := cmp.Diff(recorded[trace.Name], got, cmpopts.EquateApprox(0, 0.011)); {
	case diff == "":
	case recorded[trace.Name] == nil && !*update:
		t.Log("no figures of this trace are recorded: run with -update to record them")
	case !*update:
		t.Errorf("figures (-recorded +today), run with -update to record them:\n%s", diff)
	default:
		recorded[trace.Name] = got
		text, err := json.MarshalIndent(recorded, "", " ")
		if err := errors.Join(err, os.WriteFile(file, append(text, '\n'), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

func measure(t Trace, policy string) (mean figures, err error) {
	var runs [2]figures
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range runs {
		seed, out := int64(42+i), &runs[i]
		group.Go(func() (err error) { out.LostAt09, err = Churn(t, policy, 0.9, seed); return err })
		group.Go(func() (err error) { out.LostAt10, err = Churn(t, policy, 1, seed); return err })
		group.Go(func() error {
			curve, err := Arrive(t, policy, seed, false)
			if err == nil {
				out.At100, out.At130 = curve[100], curve[130]
			}
			return err
		})
	}
	err = group.Wait()
	return figures{
		At100: hundredth((runs[0].At100 + runs[1].At100) / 2), At130: hundredth((runs[0].At130 + runs[1].At130) / 2),
		LostAt09: hundredth((runs[0].LostAt09 + runs[1].LostAt09) / 2), LostAt10: hundredth((runs[0].LostAt10 + runs[1].LostAt10) / 2),
	}, err
}

// TestTraces compares policies on the traces of the folder TRACES.
func TestTraces(t *testing.T) {
	traces, err := readTraces(tracesFolder(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, trace := range traces {
		t.Run(trace.Name, func(t *testing.T) {
			compareFigures(t, trace, []string{ours, "fgd", "device-best-fit", "first-fit", "best-fit"})
		})
	}
}

func tracesFolder(t *testing.T) string {
	t.Helper()
	folder := os.Getenv("TRACES")
	if folder == "" {
		t.Skip("TRACES names no folder with the trace cluster-trace-gpu-v2023; TestRecordedFigures runs the same on a generated one")
	}
	return folder
}

// memories returns the assumed memory of the trace's GPU models, by the name of the trace in GiB. The
// published lists do not disclose the models G2 and G3.
func memories() map[string]GiB {
	return map[string]GiB{
		"gib-hetero":   {"T4": 16, "P100": 16, "V100M16": 16, "G2": 24, "A10": 24, "V100M32": 32, "G3": 80},
		"gib-hetero40": {"T4": 16, "P100": 16, "V100M16": 16, "G2": 40, "A10": 24, "V100M32": 32, "G3": 80},
		"gib-sim":      {"T4": 14, "P100": 15, "V100M16": 15, "G2": 19, "A10": 22, "V100M32": 31, "G3": 29},
	}
}

// readTraces returns a trace of shares for each pod list in the folder, and those in GiB for the
// default list, if it is there.
func readTraces(folder string) (traces []Trace, err error) {
	lists, err := filepath.Glob(filepath.Join(folder, podList+"*.csv"))
	if err != nil || len(lists) == 0 {
		return nil, fmt.Errorf("%s: no %s*.csv, want the pod lists and %s of the trace cluster-trace-gpu-v2023: %w", folder, podList, nodeList, err)
	}
	for _, path := range lists {
		list := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), podList), ".csv")
		shares, err := Read("share-"+list, filepath.Join(folder, nodeList), path)
		if err != nil {
			return nil, err
		}
		traces = append(traces, shares)
		if list != "default" {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(memories())) {
			gib, err := shares.InGiB(name, memories()[name])
			if err != nil {
				return nil, err
			}
			traces = append(traces, gib)
		}
	}
	return traces, nil
}

// published maps the published names of policies to the names in this package.
func published() map[string]string {
	return map[string]string{"05-BestFit": "best-fit", "06-FGD": "fgd"}
}

// The policies of the paper reproduce the published curve of each seed and pod list.
func TestPublishedCurves(t *testing.T) {
	folder := tracesFolder(t)
	file, err := os.Open(filepath.Join(folder, curves))
	if err != nil {
		t.Skip(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	traces := make(map[string]Trace)
	for _, row := range rows[1:] {
		list, policy := row[0], published()[row[1]]
		if policy == "" {
			continue
		}
		trace, ok := traces[list]
		if !ok {
			if trace, err = Read(list, filepath.Join(folder, nodeList), filepath.Join(folder, list+".csv")); err != nil {
				t.Fatal(err)
			}
			traces[list] = trace
		}
		seed, err := strconv.ParseInt(row[3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(list+"/"+policy+"/"+row[3], func(t *testing.T) {
			got, err := Arrive(trace, policy, seed, true)
			if err != nil {
				t.Fatal(err)
			}
			for i, text := range row[5:] {
				if want, err := strconv.ParseFloat(text, 64); text != "" && (err != nil || !(math.Abs(got[i]-want) < 0.0101)) {
					t.Errorf("at %d %%: %.2f, published %s", i, got[i], text)
				}
			}
		})
	}
}
