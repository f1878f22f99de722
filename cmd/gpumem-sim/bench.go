package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumem/gpumem/pkg/replay"
)

// benchOptions are the flags of bench.
type benchOptions struct {
	traces   string
	worlds   []string
	policies []string
	arrivals string
	churn    string
	workers  int
}

func benchCommand() *cobra.Command {
	o := benchOptions{policies: replay.Policies(), arrivals: "42-44", churn: "11-12", workers: runtime.GOMAXPROCS(0)}
	cmd := &cobra.Command{
		Use:   "bench --traces FOLDER",
		Short: "Compare all policies in all worlds of a folder of openb traces",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.traces, "traces", o.traces, "`folder` with the node list and the pod lists of the trace cluster-trace-gpu-v2023")
	f.StringSliceVar(&o.worlds, "worlds", o.worlds, "`names` of the worlds to run; all unless set")
	f.StringSliceVar(&o.policies, "policies", o.policies, "`names` of the policies to compare")
	f.StringVar(&o.arrivals, "seeds", o.arrivals, "seeds of the arrivals, one or `first-last`")
	f.StringVar(&o.churn, "churn-seeds", o.churn, "the same for churn")
	f.IntVar(&o.workers, "workers", o.workers, "`number` of runs at a time")
	return cmd
}

func (o *benchOptions) run(cmd *cobra.Command) error {
	arrivals, err := seeds(o.arrivals)
	if err != nil {
		return fmt.Errorf("--seeds: %w", err)
	}
	churn, err := seeds(o.churn)
	if err != nil {
		return fmt.Errorf("--churn-seeds: %w", err)
	}
	for _, p := range o.policies {
		if !slices.Contains(replay.Policies(), p) {
			return fmt.Errorf("--policies: %q is not known, want some of %s", p, strings.Join(replay.Policies(), ", "))
		}
	}
	if o.traces == "" {
		return errors.New("--traces: want a folder with the node list and the pod lists of the trace cluster-trace-gpu-v2023")
	}
	worlds, err := replay.Worlds(o.traces)
	if err != nil {
		return err
	}
	var results []string
	for _, w := range worlds {
		if len(o.worlds) > 0 && !slices.Contains(o.worlds, w.Name) {
			continue
		}
		policies := o.policies
		for _, needed := range []string{replay.Ours, w.Goals.Rival} {
			if !slices.Contains(policies, needed) {
				policies = append(slices.Clone(policies), needed)
			}
		}
		scores := replay.Bench(w, policies, arrivals, churn, o.workers)
		for _, s := range scores {
			if s.Err != nil {
				return fmt.Errorf("%s, %s: %w", w.Name, s.Policy, s.Err)
			}
		}
		results = append(results, w.Report(cmd.OutOrStdout(), scores))
	}
	for _, line := range results {
		fmt.Fprintln(cmd.OutOrStdout(), line)
	}
	return nil
}

// seeds reads one number or a range of them.
func seeds(s string) ([]int64, error) {
	from, to, isRange := strings.Cut(s, "-")
	first, err := strconv.ParseInt(from, 10, 32)
	last := first
	if err == nil && isRange {
		last, err = strconv.ParseInt(to, 10, 32)
	}
	if err != nil || first < 0 || last < first || last-first >= 1000 {
		return nil, fmt.Errorf("%q: want a number, or a range like 42-51", s)
	}
	var out []int64
	for seed := first; seed <= last; seed++ {
		out = append(out, seed)
	}
	return out, nil
}
