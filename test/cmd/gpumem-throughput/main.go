// Command gpumem-throughput measures how many pods kube-scheduler binds in a
// second with gpumem's extender and without any, see package throughput. It ends
// with a line for each figure that begins with "result:".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpumem/gpumem/test/cmd/internal/command"
	"github.com/gpumem/gpumem/test/stack"
	"github.com/gpumem/gpumem/test/throughput"
)

func main() {
	klog.SetLogger(klog.Logger{})
	command.Main("gpumem-throughput", run)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("gpumem-throughput", flag.ContinueOnError)
	flags.SetOutput(stderr)
	config := throughput.Config{Log: stack.Progress(stderr), Nodes: []int{500, 5000}, Sides: throughput.UsualSides()}
	flags.Func("nodes", "sizes of the fleet, ascending (default 500,5000)", func(s string) (err error) {
		config.Nodes, err = readSizes(s)
		return err
	})
	flags.IntVar(&config.Pods, "pods", 1000, "pods that are made at once")
	flags.IntVar(&config.Rate, "rate", 40, "pods per second of the stream")
	flags.IntVar(&config.Stream, "stream", 300, "pods of the stream")
	flags.Func("sides", "what is measured (default "+strings.Join(config.Sides, ",")+")", func(s string) (err error) {
		config.Sides, err = readSides(s)
		return err
	})
	flags.IntVar(&config.Rounds, "rounds", 3, "how often it is measured on each side, at most")
	flags.DurationVar(&config.Time, "time", 25*time.Minute, "time for all rounds: where it is short there are fewer; 0 for as long as they take")
	idle := flags.String("idle", "", "program that serves as an extender that decides nothing: gpumem-bench")
	file := flags.String("json", "", "write all figures to this file too, as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if config.Pods < 1 || config.Rate < 1 || config.Stream < 1 || config.Rounds < 1 {
		return errors.New("-pods, -rate, -stream and -rounds: want 1 or more")
	}
	if *idle == "" && slices.Contains(config.Sides, "idle") {
		return errors.New("-idle: want the path of gpumem-bench")
	}
	config.Idle = []string{*idle, "-idle"}
	report, err := throughput.Run(ctx, config)
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, report)
	return command.WriteJSON(*file, report)
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
		return nil, fmt.Errorf("%v: want numbers from 1 up, ascending", out)
	}
	return out, nil
}

func readSides(s string) ([]string, error) {
	named := strings.Split(s, ",")
	for _, side := range named {
		if !slices.Contains(throughput.Sides(), side) {
			return nil, fmt.Errorf("%q: want some of %s", side, strings.Join(throughput.Sides(), ", "))
		}
	}
	return slices.DeleteFunc(throughput.Sides(), func(side string) bool { return !slices.Contains(named, side) }), nil
}
