package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumem/gpumem/pkg/replay"
	"github.com/gpumem/gpumem/pkg/replay/report"
)

// replayOptions are the flags of replay.
type replayOptions struct {
	nodes, pods         string
	snapshot            string
	add, remove         []string
	policies            []string
	seeds               string
	workers             int
	html, json, csv     string
	allocated, fragment string
}

const replayExample = `  # The pods of a cluster, placed again by three policies, with four more nodes
  kubectl inspect gpumem snapshot -o json > cluster.json
  gpumem-sim replay --snapshot cluster.json --policies binpack,spread,best-fit \
    --add-nodes gpu-node-1=4 --html report.html

  # A list of your own
  gpumem-sim replay --nodes nodes.csv --pods pods.csv --seeds 1-10 --html report.html`

func replayCommand() *cobra.Command {
	o := replayOptions{policies: []string{replay.Ours, "spread", "device-best-fit", "best-fit"}, seeds: "42-44", workers: runtime.GOMAXPROCS(0)}
	cmd := &cobra.Command{
		Use:     "replay (--snapshot FILE | --nodes FILE --pods FILE)",
		Short:   "Place the pods of a trace or of a cluster by several policies",
		Long:    "Place pods in random order, and more of the same until they ask for 1.3 times the GPUs, and show how full each policy gets the nodes.",
		Example: replayExample,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.nodes, "nodes", o.nodes, "CSV `file` with nodes, the names of the columns first: name,gpus,gpu-mem,gpu-model,cpu")
	f.StringVar(&o.pods, "pods", o.pods, "CSV `file` with pods: name,gpu-mem,gpu-count,gpu-core,gpu-model,cpu")
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
	records, err := replay.WatchAll(trace, o.policies, numbers, o.workers, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	summary := cmd.OutOrStdout()
	if slices.Contains([]string{o.json, o.csv, o.allocated, o.fragment, o.html}, "-") {
		summary = cmd.ErrOrStderr() // what is asked for there is to be read by programs
	}
	report.Summary(summary, trace, records)
	return errors.Join(
		write(cmd.OutOrStdout(), o.json, func(w io.Writer) error { return json.NewEncoder(w).Encode(records) }),
		write(cmd.OutOrStdout(), o.csv, func(w io.Writer) error { return report.Curves(w, records) }),
		write(cmd.OutOrStdout(), o.allocated, func(w io.Writer) error { return report.Allocated(w, trace, records) }),
		write(cmd.OutOrStdout(), o.fragment, func(w io.Writer) error { return report.Fragmented(w, trace, records) }),
		write(cmd.OutOrStdout(), o.html, func(w io.Writer) error { return report.Page(w, trace, records) }),
	)
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
