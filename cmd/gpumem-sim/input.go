package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpumem/gpumem/pkg/replay"
)

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
	return replay.ReadSimple(filepath.Base(o.pods), nodes, pods)
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
