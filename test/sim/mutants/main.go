// Command mutants shows that the simulation bites: it puts faults into gpumem,
// one at a time, and lets the simulation look for each, or the unit test that is
// named for it (table.go). Then it generates mutants of the core by a seed, and has all
// tests of the core look for each, and the simulation (generate.go). The tree is not
// changed: the compiler is given other files in its place (go build -overlay).
//
// It is run in test/sim. The exit status is 1 unless every fault is found.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	seeds := flag.Int("seeds", 8000, "how many seeds to look for a fault at most")
	only := flag.String("only", "", "only mutants whose name matches; the names of those that are generated begin with their file")
	count := flag.Int("generated", 200, "how many mutants to generate")
	seed := flag.Uint64("seed", 1, "of those that are generated")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *seeds, *only, *count, *seed)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// fewSeeds is how many seeds look for a mutant that is generated: most that no test finds
// change nothing.
const fewSeeds = 400

func run(ctx context.Context, seeds int, only string, count int, seed uint64) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	return errors.Join(tryTable(ctx, dir, seeds, chosen), generate(ctx, dir, count, min(seeds, fewSeeds), seed, chosen))
}

func tryTable(ctx context.Context, dir string, seeds int, chosen *regexp.Regexp) error {
	tried, caught := 0, 0
	for _, m := range table {
		if !chosen.MatchString(m.name) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		tried++
		found, err := m.find(ctx, dir, seeds)
		if err != nil {
			fmt.Printf("%-32s NOT CAUGHT: %v\n", m.name, err)
			continue
		}
		caught++
		fmt.Printf("%-32s %s\n", m.name, found)
	}
	fmt.Printf("result: mutants %d/%d caught\n", caught, tried)
	if caught < tried {
		return errors.New("not every fault is seen")
	}
	return nil
}

// find puts the fault in and says what has found it.
func (m mutant) find(ctx context.Context, dir string, seeds int) (string, error) {
	path, content, err := m.mutate()
	if err != nil {
		return "", err
	}
	overlay, err := overlay(dir, path, content)
	if err != nil {
		return "", err
	}
	if m.test != simulation {
		return m.test, m.unit(ctx, overlay)
	}
	binary, err := build(ctx, dir, overlay)
	if err != nil {
		return "", err
	}
	start := time.Now()
	found, err := search(ctx, binary, seeds)
	return fmt.Sprintf("%-8s after %4s seeds, at step %4s (%s)", found.invariant, found.seed, found.step, time.Since(start).Round(time.Second)), err
}

// mutate returns the file with the fault in it. The old text must be there
// exactly once.
func (m mutant) mutate() (path string, content []byte, err error) {
	path, err = filepath.Abs(filepath.Join("..", "..", m.file))
	if err != nil {
		return "", nil, err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return "", nil, fmt.Errorf("the text to replace is %d times in %s, want once: %q", n, m.file, m.old)
	}
	return path, []byte(strings.Replace(string(source), m.old, m.new, 1)), nil
}

// overlay writes a file with a fault in it, and what names it to the compiler.
func overlay(dir, path string, content []byte) (name string, err error) {
	file, name := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: file}})
	if err != nil {
		return "", err
	}
	return name, errors.Join(os.WriteFile(file, content, 0o600), os.WriteFile(name, replace, 0o600))
}

// unit runs the unit test that has to find the fault.
func (m mutant) unit(ctx context.Context, overlay string) error {
	dir, name := m.unitTest()
	test := exec.CommandContext(ctx, "go", "test", "-vet=off", "-overlay", overlay, "-run", "^"+name+"$", "./"+dir)
	test.Dir = filepath.Join("..", "..")
	out, err := test.CombinedOutput()
	if err == nil {
		return fmt.Errorf("%s passes", name)
	}
	if !strings.Contains(string(out), "--- FAIL: "+name) {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// unitTest returns the folder of the unit test, below the repository's, and its name.
func (m mutant) unitTest() (dir, name string) {
	if dir, name, ok := strings.Cut(m.test, ":"); ok {
		return dir, name
	}
	return filepath.Dir(m.file), m.test
}

// build compiles the simulation with the fault in it.
func build(ctx context.Context, dir, overlay string) (binary string, err error) {
	binary = filepath.Join(dir, "sim.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("does not compile: %w\n%s", err, out)
	}
	return binary, nil
}

type violation struct{ seed, step, invariant string }

var line = regexp.MustCompile(`(?m)^violation: seed=(\d+) step=(\d+) invariant=(\S+)`)

// search runs seeds until one breaks an invariant.
func search(ctx context.Context, binary string, seeds int) (violation, error) {
	out, err := exec.CommandContext(ctx, binary, "-test.run", "TestSim$", "-test.timeout", "20m", "-shrink=false", "-seeds", fmt.Sprint(seeds)).CombinedOutput()
	if found := line.FindSubmatch(out); found != nil {
		return violation{string(found[1]), string(found[2]), string(found[3])}, nil
	}
	if err != nil {
		return violation{}, fmt.Errorf("%w\n%s", err, out)
	}
	return violation{}, fmt.Errorf("%d seeds break no invariant", seeds)
}
