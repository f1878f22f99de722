// Command gpu measures on a machine with a GPU what limits hold there, and what sharing costs.
// It starts the real device plugin before a stand-in for the kubelet, takes the environment from
// its replies to Allocate, and runs CUDA programs with it. See run.sh.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	code, done, err := withOwnMounts()
	if done {
		os.Exit(code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu: mounts of its own:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), asked()...)
	err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu:", err)
		os.Exit(1)
	}
}

// options are what the command line says.
type options struct {
	kit         kit
	parts       []string
	results     string
	page        string
	list, paged bool
}

func read(args []string, stderr io.Writer) (o options, err error) {
	k := kit{log: stderr}
	f := flag.NewFlagSet("gpu", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&k.plugin, "plugin", "", "the device plugin")
	f.StringVar(&k.probe, "probe", "", "the CUDA program")
	f.StringVar(&k.library, "nvml-library", "", "the library of NVML; where the driver has it unless set")
	f.StringVar(&k.cgroups, "cgroup-root", "/sys/fs/cgroup", "where control groups of version 2 are mounted")
	f.IntVar(&k.units, "units", 2, "GiB of a grant")
	f.Float64Var(&k.seconds, "seconds", 5, "how long to compute for a figure")
	f.DurationVar(&k.patience, "patience", 30*time.Second, "for a part of gpumem to come up")
	sharers := f.String("sharers", "1,2,4,8,12,30", "numbers of programs that share the GPU; 1 must be the first")
	names := f.String("parts", "", "parts to run; all unless set")
	f.StringVar(&o.results, "results", "", "folder for the results; none unless set")
	f.StringVar(&o.page, "docs", "", "the page that -page writes")
	f.BoolVar(&o.paged, "page", false, "make the page of the results, and measure nothing")
	f.BoolVar(&o.list, "list", false, "say which parts there are, and what they ask")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for number := range strings.FieldsFuncSeq(*sharers, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			return o, fmt.Errorf("-sharers: %q, want numbers of 1 and more", number)
		}
		k.sharers = append(k.sharers, n)
	}
	if len(k.sharers) == 0 || k.sharers[0] != 1 {
		return o, errors.New("-sharers: 1 must be the first: all are compared with exclusive use")
	}
	o.parts = slices.Collect(strings.FieldsFuncSeq(*names, func(r rune) bool { return r == ',' }))
	for _, name := range o.parts {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return o, fmt.Errorf("-parts: %q is none of %s", name, strings.Join(namesOf(parts, func(p part) string { return p.name }), ", "))
		}
	}
	k.driver = library{k.library}
	o.kit = k
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := read(args, stderr)
	switch {
	case err != nil:
		return err
	case o.list:
		for _, p := range parts {
			fmt.Fprintf(stdout, "%s\n  %s\n", p.name, strings.Join(p.asks, "\n  "))
		}
		return nil
	case o.paged:
		all, err := readResults(o.results)
		if err != nil {
			return err
		}
		return os.WriteFile(o.page, []byte(page(all)), 0o644)
	}
	return o.measure(ctx, stdout)
}

// measure runs the parts, and prints and keeps what they say.
func (o options) measure(ctx context.Context, stdout io.Writer) error {
	result, err := o.kit.all(ctx, o.parts)
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, result.table())
	if ctx.Err() != nil {
		return ctx.Err() // half a result is not kept
	}
	if o.results != "" {
		path, err := result.write(o.results)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "\nwritten: %s.json and .md\n", path)
	}
	if n := result.failed(); n > 0 {
		return fmt.Errorf("%d of %d questions failed", n, len(result.Lines))
	}
	return nil
}

// kit is how to measure.
type kit struct {
	plugin, probe string
	library       string // of NVML; empty: where the driver has it
	cgroups       string // where control groups of version 2 are mounted
	units         int    // of a grant
	seconds       float64
	sharers       []int
	patience      time.Duration // for a part of gpumem to come up
	log           io.Writer
	driver        driver

	facts facts // of the machine
}

// partTime is how long a part may take.
const partTime = 8 * time.Minute

// A part is a group of questions that are asked together, and can be asked alone.
type part struct {
	name string
	asks []string
	// run answers. An error is why the questions that it has not answered could not be asked.
	run func(k kit, ctx context.Context, a *answers) error
}

var parts = []part{
	atLevel(advisory, within, beyond, forked, both, neighbour, managed, second, pair),
	atLevel(mpsLevel, within, beyond, forked, both, neighbour, managed, second, pair),
	atLevel(kernelLevel, within, beyond, forked, both, neighbour, managed, second, pair),
	{"vendor", vendorNames(), kit.vendor},
	{"cores", coreNames(), kit.cores},
	{"sharing", sharingNames(), kit.sharing},
	{"daemon", []string{takesSettings, listsServers, listsClients, namespaces, readOnly, throughFolder, askedThere, quits}, kit.daemon},
	{"use", useNames(), kit.use},
	{"containers", []string{seesGPU, hookSets, clientIn, kernelIn}, kit.containers},
}

func namesOf[T any](all []T, name func(T) string) (names []string) {
	for _, one := range all {
		names = append(names, name(one))
	}
	return names
}

// asLeft is the question that every run asks.
const asLeft = "compute mode, MIG mode and clocks are as before"

// answers are those of one part.
type answers struct {
	part   string
	lines  []Line
	result *Result
	log    io.Writer
}

// tell answers a question.
func (a *answers) tell(name, seen string, err error) {
	line := answer(a.part, name, seen, err)
	a.lines = append(a.lines, line)
	fmt.Fprintf(a.log, "%s, %s: %s: %s\n", line.Part, line.Name, line.Verdict, line.Says)
}

func (a *answers) has(name string) bool {
	return slices.ContainsFunc(a.lines, func(l Line) bool { return l.Name == name })
}

// all runs the named parts, or all.
func (k kit) all(ctx context.Context, names []string) (r Result, err error) {
	if k.facts, err = k.driver.facts(); err != nil {
		return r, err
	}
	first := k.facts.gpus[0]
	r = Result{
		Date: time.Now().UTC().Format(time.DateOnly), GPU: first.model, GPUs: len(k.facts.gpus), MemoryMiB: first.memoryMiB,
		Driver: k.facts.version, Linux: linux(),
	}
	before, err := k.driver.settings()
	if err != nil {
		return r, err
	}
	for _, p := range parts {
		if ctx.Err() == nil && (len(names) == 0 || slices.Contains(names, p.name)) {
			r.Lines = append(r.Lines, k.one(ctx, p, &r)...)
		}
	}
	after, err := k.driver.settings()
	if err == nil && after != before {
		err = fmt.Errorf("before: %s; after: %s", before, after)
	}
	r.Lines = append(r.Lines, answer("all", asLeft, after, err))
	return r, nil
}

// one runs a part. What it has not answered when its time is over could not be tried.
func (k kit) one(ctx context.Context, p part, r *Result) []Line {
	ctx, cancel := context.WithTimeoutCause(ctx, partTime, errors.New("its 8 minutes are over"))
	defer cancel()
	a := &answers{part: p.name, result: r, log: k.log}
	err := p.run(k, ctx, a)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	for _, name := range p.asks {
		switch {
		case a.has(name):
		case err == nil:
			a.tell(name, "", errors.New("the kit has not asked: this is an error of the kit"))
		default:
			a.tell(name, "", notTried{err.Error()})
		}
	}
	return a.lines
}

// linux is the version of the kernel.
func linux() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(text))
}
