package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/gpumem/gpumem/pkg/replay"
)

// Curves writes a line of CSV for each run and per cent of arrived demand.
func Curves(w io.Writer, records []replay.Record) error {
	out := csv.NewWriter(w)
	lines := [][]string{{"policy", "seed", "arrived", "allocated", "fragmented"}}
	for _, r := range records {
		for i := range min(len(r.Allocated), len(r.Fragmented)) {
			lines = append(lines, []string{
				r.Policy, strconv.FormatInt(r.Seed, 10), strconv.Itoa(i),
				strconv.FormatFloat(r.Allocated[i], 'f', 2, 64), strconv.FormatFloat(r.Fragmented[i], 'f', 2, 64),
			})
		}
	}
	return out.WriteAll(lines)
}

// Summary writes a line for each policy.
func Summary(w io.Writer, t replay.Trace, records []replay.Record) {
	nodes := "nodes"
	if len(t.Nodes) == 1 {
		nodes = "node"
	}
	fmt.Fprintf(w, "%s: %d %s, %d units of GPU memory, %d pods that ask for %d\n", t.Name, len(t.Nodes), nodes, t.Capacity(), len(t.Pods), t.Demand())
	fmt.Fprintf(w, "%-16s %22s %22s\n", "POLICY", "ALLOCATED AT 100%", "AT 130%")
	for _, policy := range byPolicy(records) {
		fmt.Fprintf(w, "%-16s %14.2f%% ± %4.2f %14.2f%% ± %4.2f\n", policy[0].Policy, mean(policy, 100), deviation(policy, 100), mean(policy, 130), deviation(policy, 130))
	}
}

// deviation is the standard deviation over the seeds.
func deviation(records []replay.Record, at int) float64 {
	sum, middle := 0.0, mean(records, at)
	for _, r := range records {
		sum += (r.Allocated[at] - middle) * (r.Allocated[at] - middle)
	}
	return math.Sqrt(sum / float64(len(records)))
}

func byPolicy(records []replay.Record) (out [][]replay.Record) {
	for _, r := range records {
		if n := len(out); n > 0 && out[n-1][0].Policy == r.Policy {
			out[n-1] = append(out[n-1], r)
		} else {
			out = append(out, []replay.Record{r})
		}
	}
	return out
}

func mean(records []replay.Record, at int) (sum float64) {
	for _, r := range records {
		sum += r.Allocated[at] / float64(len(records))
	}
	return sum
}
