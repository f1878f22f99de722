package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are what can be set.
type options struct {
	rounds   int           // of measuring one thing after the other
	duration time.Duration // of the stress
}

// section is one part of the benchmarks.
type section struct {
	name string
	run  func(context.Context, options, *report) error
}

// sections returns all parts, in the order in which they run.
func sections() []section {
	return []section{
		{"handlers", benchHandlers},
		{"stress", benchStress},
		{"memory", benchMemory},
		{"node", benchNode},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var names []string
	for _, s := range sections() {
		names = append(names, s.name)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "usage: bench [flags] [section ...]\nsections: %s (default: all)\n", strings.Join(names, ", "))
		flags.PrintDefaults()
	}
	var opts options
	flags.IntVar(&opts.rounds, "rounds", 15, "how often the two sides of a ratio are measured in turn")
	flags.DurationVar(&opts.duration, "duration", time.Minute, "how long the stress goes on")
	file := flags.String("json", "", "write the results to this file too, as JSON")
	idle := flags.String("idle", "", "measure nothing, and serve as an extender that decides nothing, with this kubeconfig")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *idle != "" {
		return serveIdle(ctx, *idle)
	}
	for _, name := range flags.Args() {
		if !slices.Contains(names, name) {
			return fmt.Errorf("there is no section %q: want some of %s", name, strings.Join(names, ", "))
		}
	}
	r := &report{progress: stderr}
	for _, s := range sections() {
		if flags.NArg() > 0 && !slices.Contains(flags.Args(), s.name) {
			continue
		}
		fmt.Fprintf(stderr, "==> %s\n", s.name)
		if err := s.run(ctx, opts, r); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if *file != "" {
		if err := r.writeJSON(*file); err != nil {
			return err
		}
	}
	return r.print(stdout)
}
