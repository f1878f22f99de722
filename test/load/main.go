package load

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumem/gpumem/test/stack"
)

// options are the flags.
type options struct {
	nodes  []int // sizes of the fleet, ascending
	pods   int   // of a burst
	rounds int
	before string        // another gpumem-scheduler; empty: none
	rest   time.Duration // of watching an idle device plugin
	log    io.Writer
}

// section is one part of the report.
type section struct {
	name, doc string
	run       func(context.Context, options, *report) error
}

// sections returns all parts in the order in which they run.
func sections() []section {
	return []section{
		{"inprocess", "kube-scheduler in one process with an API server in memory: alone, alone again, with the plugin", inProcess},
		{"index", "place one pod with the plugin's index of 50,000 nodes", goBenchmarks},
		{"cluster", "API server and etcd: kube-scheduler alone, alone again, gpumem-scheduler, the extender (needs root)", clusters},
		{"worst", "the worst cases of gpumem-scheduler, ÷ the program that -before names (needs root)", worstCases},
		{"extender", "each verb of gpumem-extender, divided by a program that only decodes and encodes", goBenchmarks},
		{"stress", "a hundred schedulers at one extender", goBenchmarks},
		{"memory", "the live heap of the extender with 5,000 nodes and 100,000 pods", goBenchmarks},
		{"node", "the device plugin's answers when a container starts on a full node", goBenchmarks},
		{"cli", "kubectl inspect gpumem with 5,000 nodes and 50,000 pods", goBenchmarks},
		{"kubelet", "start of a pod on a real kubelet; the device plugin at rest (needs root)", kubeletStarts},
	}
}

// throughput names the sections that measure the goals of the scheduler.
var throughput = []string{"inprocess", "index", "cluster", "worst"}

// Run measures the sections that args name, or all of them, and writes the report to stdout.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	opts := options{nodes: []int{500, 5000}, log: stack.Progress(stderr)}
	flags := flag.NewFlagSet("gpumem-load", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "usage: gpumem-load [flags] [section ...]\n\nSections (default: all; throughput stands for %s):\n", strings.Join(throughput, ", "))
		for _, s := range sections() {
			fmt.Fprintf(stderr, "  %-10s %s\n", s.name, s.doc)
		}
		fmt.Fprintln(stderr)
		flags.PrintDefaults()
	}
	flags.Func("nodes", "`sizes` of the fleet, ascending (default 500,5000)", func(s string) (err error) {
		opts.nodes, err = readSizes(s)
		return err
	})
	flags.IntVar(&opts.pods, "pods", 1000, "pods that are created at once")
	flags.IntVar(&opts.rounds, "rounds", 5, "measurements of each side")
	flags.StringVar(&opts.before, "before", "", "`path` of another gpumem-scheduler, with which the worst cases are compared")
	flags.DurationVar(&opts.rest, "rest", 30*time.Second, "time of watching an idle device plugin")
	file := flags.String("json", "", "`file` for all figures, as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if opts.pods < 1 || opts.rounds < 1 || opts.rest < time.Second {
		return errors.New("-pods and -rounds must be 1 or more, and -rest 1s or more")
	}
	selected, err := selectSections(flags.Args())
	if err != nil {
		return err
	}
	r := &report{log: opts.log}
	for _, s := range selected {
		r.sections = append(r.sections, s.name)
		fmt.Fprintln(opts.log, "section", s.name)
		r.section = s.name
		if err := s.run(ctx, opts, r); err != nil {
			return fmt.Errorf("section %s: %w", s.name, err)
		}
	}
	if _, err := io.WriteString(stdout, r.String()); err != nil || *file == "" {
		return err
	}
	data, err := json.MarshalIndent(r.figures, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(*file, append(data, '\n'), 0o644)
}

// selectSections returns the named sections, or all.
func selectSections(names []string) ([]section, error) {
	all := sections()
	if len(names) == 0 {
		return all, nil
	}
	if i := slices.Index(names, "throughput"); i >= 0 {
		names = slices.Concat(names[:i], throughput, names[i+1:])
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(s section) bool { return s.name == name }) {
			return nil, fmt.Errorf("unknown section %q; -h lists the sections", name)
		}
	}
	return slices.DeleteFunc(all, func(s section) bool { return !slices.Contains(names, s.name) }), nil
}

func readSizes(s string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	if !slices.IsSorted(out) || out[0] < 1 {
		return nil, fmt.Errorf("%v: want ascending numbers from 1", out)
	}
	return out, nil
}
