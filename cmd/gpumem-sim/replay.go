package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gpumem/gpumem/pkg/replay"
)

// replayOptions are the flags of replay.
type replayOptions struct {
	nodes, pods, format string
	snapshot            string
	add, remove         []string
	policies            []string
	seeds               string
	workers             int
	html, json, csv     string
	allocated, fragment string
}

const replayExample = `  # The pods of a cluster, placed anew by three policies, with four more nodes
  kubectl inspect gpumem snapshot -o json > cluster.json
  gpumem-sim replay --snapshot cluster.json --policies binpack,spread,best-fit \
    --add-nodes gpu-node-1=4 --html report.html

  # A list of your own
  gpumem-sim replay --nodes nodes.csv --pods pods.csv --seeds 1-10 --html report.html`

func replayCommand() *cobra.Command {
	o := replayOptions{format: "simple", policies: []string{replay.Ours, "spread", "device-best-fit", "best-fit", "fgd"}, seeds: "42-44", workers: runtime.GOMAXPROCS(0)}
	cmd := &cobra.Command{
		Use:     "replay (--snapshot FILE | --nodes FILE --pods FILE)",
		Short:   "Place the pods of a trace or of a cluster by several policies",
		Long:    "Place pods in random order, and more of the same until they ask for 1.3 times the GPUs, and show how full each policy gets the nodes.",
		Example: replayExample,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.nodes, "nodes", o.nodes, "CSV `file` with nodes")
	f.StringVar(&o.pods, "pods", o.pods, "CSV `file` with pods")
	f.StringVar(&o.format, "format", o.format, "`format` of both: simple, with a line of column names (nodes: name,gpus,gpu-mem,gpu-model,cpu; pods: name,gpu-mem,gpu-count,gpu-core,gpu-model,cpu), or openb")
	f.StringVar(&o.snapshot, "snapshot", o.snapshot, "`file` that kubectl inspect gpumem snapshot -o json has written")
	f.StringArrayVar(&o.add, "add-nodes", o.add, "`node=count`: add so many nodes like one that there is")
	f.StringArrayVar(&o.remove, "remove-nodes", o.remove, "take away the nodes whose names match a `glob`")
	f.StringSliceVar(&o.policies, "policies", o.policies, "`names` of policies: "+strings.Join(replay.Policies(), ", "))
	f.StringVar(&o.seeds, "seeds", o.seeds, "seeds of the order of pods, one or `first-last`")
	f.IntVar(&o.workers, "workers", o.workers, "`number` of runs at a time")
	f.StringVar(&o.html, "html", o.html, "write a report with plots to this `file`")
	f.StringVar(&o.json, "json", o.json, "write all that was recorded to this `file`; - is standard output")
	f.StringVar(&o.csv, "csv", o.csv, "write the curves to this `file`; - is standard output")
	f.StringVar(&o.allocated, "allocation-svg", o.allocated, "write the plot of allocation alone to this `file`")
	f.StringVar(&o.fragment, "fragmentation-svg", o.fragment, "write the plot of fragmentation alone to this `file`")
	return cmd
}

func (o *replayOptions) run(cmd *cobra.Command) error {
	numbers, err := seeds(o.seeds)
	if err != nil {
		return fmt.Errorf("--seeds: %w", err)
	}
	for _, p := range o.policies {
		if !slices.Contains(replay.Policies(), p) {
			return fmt.Errorf("--policies: %q is not known, want some of %s", p, strings.Join(replay.Policies(), ", "))
		}
	}
	trace, err := o.trace()
	if err != nil {
		return err
	}
	records, err := watchAll(trace, o.policies, numbers, o.workers, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	summary := cmd.OutOrStdout()
	if slices.Contains([]string{o.json, o.csv, o.allocated, o.fragment, o.html}, "-") {
		summary = cmd.ErrOrStderr() // what is asked for there is to be read by programs
	}
	summarise(summary, trace, records)
	return errors.Join(
		write(cmd.OutOrStdout(), o.json, func(w io.Writer) error { return json.NewEncoder(w).Encode(records) }),
		write(cmd.OutOrStdout(), o.csv, func(w io.Writer) error { return writeCurves(w, records) }),
		write(cmd.OutOrStdout(), o.allocated, func(w io.Writer) error {
			return writePlot(w, trace, records, func(r report) plot { return r.Allocated })
		}),
		write(cmd.OutOrStdout(), o.fragment, func(w io.Writer) error {
			return writePlot(w, trace, records, func(r report) plot { return r.Fragmented })
		}),
		write(cmd.OutOrStdout(), o.html, func(w io.Writer) error { return writeReport(w, trace, records) }),
	)
}

// trace reads what the flags name, with the nodes that they add and remove.
func (o *replayOptions) trace() (replay.Trace, error) {
	t, err := o.read()
	if err != nil {
		return replay.Trace{}, err
	}
	for _, glob := range o.remove {
		if t, err = t.RemoveNodes(glob); err != nil {
			return replay.Trace{}, fmt.Errorf("--remove-nodes: %w", err)
		}
	}
	for _, add := range o.add {
		like, count, ok := strings.Cut(add, "=")
		n, err := strconv.Atoi(count)
		if !ok || err != nil || n < 1 || n > 100_000 {
			return replay.Trace{}, fmt.Errorf("--add-nodes: %q: want the name of a node and a number, like gpu-node-1=4", add)
		}
		if t, err = t.AddNodes(like, n); err != nil {
			return replay.Trace{}, fmt.Errorf("--add-nodes: %w", err)
		}
	}
	return t, nil
}

func (o *replayOptions) read() (replay.Trace, error) {
	if (o.snapshot == "") == (o.nodes == "" && o.pods == "") {
		return replay.Trace{}, errors.New("want either --snapshot, or --nodes and --pods")
	}
	if o.snapshot != "" {
		file, err := os.Open(o.snapshot)
		if err != nil {
			return replay.Trace{}, err
		}
		defer file.Close()
		return replay.ReadSnapshot(filepath.Base(o.snapshot), file)
	}
	readers := map[string]func(string, io.Reader, io.Reader) (replay.Trace, error){"simple": replay.ReadSimple, "openb": replay.ReadOpenB}
	read, ok := readers[o.format]
	if !ok {
		return replay.Trace{}, fmt.Errorf("--format: %q, want simple or openb", o.format)
	}
	nodes, err := os.Open(o.nodes)
	if err != nil {
		return replay.Trace{}, fmt.Errorf("--nodes: %w", err)
	}
	defer nodes.Close()
	pods, err := os.Open(o.pods)
	if err != nil {
		return replay.Trace{}, fmt.Errorf("--pods: %w", err)
	}
	defer pods.Close()
	return read(filepath.Base(o.pods), nodes, pods)
}

// watchAll runs every policy with every seed and tells how far it is. The
// records are by policy and then by seed.
func watchAll(t replay.Trace, policies []string, seeds []int64, workers int, progress io.Writer) ([]replay.Record, error) {
	records := make([]replay.Record, len(policies)*len(seeds))
	errs := make([]error, len(records))
	jobs := make(chan int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	done := 0
	for range max(1, workers) {
		wg.Go(func() {
			for i := range jobs {
				policy, seed := policies[i/len(seeds)], seeds[i%len(seeds)]
				records[i], errs[i] = replay.Watch(t, policy, seed)
				mu.Lock()
				done++
				fmt.Fprintf(progress, "%d of %d: %s, seed %d\n", done, len(records), policy, seed)
				mu.Unlock()
			}
		})
	}
	for i := range records {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
	return records, errors.Join(errs...)
}

// write writes to a file, to standard output for "-", and not at all for
// nothing.
func write(stdout io.Writer, path string, content func(io.Writer) error) error {
	switch path {
	case "":
		return nil
	case "-":
		return content(stdout)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(content(file), file.Close())
}

// writeCurves writes a line for each run and per cent of arrived demand.
func writeCurves(w io.Writer, records []replay.Record) error {
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

// summarise prints a line for each policy.
func summarise(w io.Writer, t replay.Trace, records []replay.Record) {
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
