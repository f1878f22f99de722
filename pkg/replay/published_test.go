package replay

import (
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// published names the policies as the published results do.
func published() map[string]string {
	return map[string]string{
		"02-DotProd": "dot-product", "03-GpuClustering": "clustering", "04-GpuPacking": "packing",
		"05-BestFit": "best-fit", "06-FGD": "fgd",
	}
}

// The published curve of each policy, seed and list, in TRACES.
func TestPublishedCurves(t *testing.T) {
	folder := os.Getenv("TRACES")
	if folder == "" {
		t.Skip("TRACES does not name a folder with the published traces and curves; the fixture stands in for them")
	}
	file, err := os.Open(filepath.Join(folder, "openb_published_allocation.csv"))
	if err != nil {
		t.Fatal(err)
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
			continue // random: its order is not repeatable
		}
		trace, ok := traces[list]
		if !ok {
			trace = load(t, folder, list)
			traces[list] = trace
		}
		seed, err := strconv.ParseInt(row[3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(list+"/"+policy+"/"+row[3], func(t *testing.T) {
			got, err := Published(trace, policy, seed)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, got.Curve(), row[5:])
		})
	}
}

func load(t *testing.T, folder, list string) Trace {
	t.Helper()
	nodes, err := os.Open(filepath.Join(folder, "openb_node_list_gpu_node.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer nodes.Close()
	pods, err := os.Open(filepath.Join(folder, list+".csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer pods.Close()
	trace, err := ReadOpenB(list, nodes, pods)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func compare(t *testing.T, got []float64, want []string) {
	t.Helper()
	for i, text := range want {
		if text == "" {
			continue
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		if !(math.Abs(got[i]-value) < 0.0101) {
			t.Errorf("at %d%%: %.2f, published %.2f", i, got[i], value)
		}
	}
}
