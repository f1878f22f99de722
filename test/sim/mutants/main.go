// Command mutants measures the tests of gpumem. It puts one fault at a time into a copy of a source
// file and runs the tests with that file (go build -overlay); the tree stays as it is.
//
// Known faults are the patches in testdata: faults of systems of this kind, and faults that gpumem
// came close to. The head of a patch names the fault and the test that has to find it: a unit test
// or the simulation. To see one in the source, run git apply on its patch. A fault that fewer than
// one in thousands of simulated runs shows has a unit test.
//
// Generated faults are drawn by a seed from the packages of -packages (generate.go). The tests of
// the package have to find each, or the tests of packages that import it, or the simulation.
//
// Run it in test/sim. The exit status is 1 unless the tests find every known fault and 95 % of the
// generated ones.
package main

import (
	"bytes"
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

// root is the root of the repository, seen from test/sim.
var root = filepath.Join("..", "..")

func main() {
	seeds := flag.Int("seeds", 8000, "the most seeds of the simulation that look for a fault")
	only := flag.String("only", "", "a regular expression: put in only the faults whose name matches")
	count := flag.Int("generated", 200, "the number of generated faults")
	seed := flag.Uint64("seed", 1, "draws the generated faults")
	packages := flag.String("packages", "./pkg/core/...", "patterns of packages, separated by spaces, for generated faults")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *only, *seeds, *count, *seed, strings.Fields(*packages))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, seeds, count int, seed uint64, packages []string) error {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return errors.Join(tryKnown(ctx, dir, seeds, chosen), tryGenerated(ctx, dir, count, min(seeds, fewSeeds), seed, packages, chosen))
}

// A mutant is a source file with a fault.
type mutant struct {
	name    string // of the fault
	file    string // from the root of the repository
	content []byte // of the file with the fault
	test    string // finds the fault; "" for the simulation
	dir     string // of the test, from the root of the repository
}

func tryKnown(ctx context.Context, dir string, seeds int, chosen *regexp.Regexp) error {
	known, err := readPatches(ctx, dir)
	if err != nil {
		return err
	}
	tried, found := 0, 0
	for _, m := range known {
		if !chosen.MatchString(m.name) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		tried++
		by, err := m.find(ctx, dir, seeds)
		if err != nil {
			fmt.Printf("NOT FOUND: %s: %v\n", m.name, err)
			continue
		}
		found++
		fmt.Printf("%s: %s\n", m.name, by)
	}
	fmt.Printf("result: known faults %d, found %d\n", tried, found)
	if found < tried {
		return errors.New("the tests do not find every known fault")
	}
	return nil
}

// head parses a patch: its fault, its test and the test's folder, and the file that it changes.
var head = regexp.MustCompile(`(?s)^Fault: ([^\n]+)\nFound by: (?:the simulation|(\w+) in (\S+))\n.*?\n\+\+\+ b/(\S+)\n`)

// readPatches returns the known faults. It applies each patch to a copy of its file in dir.
func readPatches(ctx context.Context, dir string) (out []mutant, err error) {
	patches, err := filepath.Glob(filepath.Join("mutants", "testdata", "*.patch"))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, patch := range patches {
		text, err := os.ReadFile(patch)
		if err != nil {
			return nil, err
		}
		parts := head.FindSubmatch(text)
		if parts == nil {
			return nil, fmt.Errorf("%s has no head", patch)
		}
		m := mutant{name: string(parts[1]), test: string(parts[2]), dir: string(parts[3]), file: string(parts[4])}
		if m.content, err = applyPatch(ctx, dir, m.file, text); err != nil {
			errs = append(errs, fmt.Errorf("%s does not apply; adapt it to %s: %w", patch, m.file, err))
		}
		out = append(out, m)
	}
	return out, errors.Join(errs...)
}

// applyPatch returns the content of a file after a patch. One line of context has to match on each
// side, so that a change nearby does not break the patch.
func applyPatch(ctx context.Context, dir, file string, patch []byte) ([]byte, error) {
	source, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return nil, err
	}
	tree := filepath.Join(dir, "patched")
	target := filepath.Join(tree, file)
	if err := errors.Join(os.MkdirAll(filepath.Dir(target), 0o700), os.WriteFile(target, source, 0o600)); err != nil {
		return nil, err
	}
	apply := exec.CommandContext(ctx, "git", "apply", "-C1", "--whitespace=nowarn", "-")
	apply.Dir, apply.Stdin, apply.Env = tree, bytes.NewReader(patch), append(os.Environ(), "GIT_CEILING_DIRECTORIES="+dir)
	if out, err := apply.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(target)
}

// find runs the test that has to find a known fault, and returns what found it.
func (m mutant) find(ctx context.Context, dir string, seeds int) (by string, err error) {
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", err
	}
	if m.test == "" {
		return simulate(ctx, dir, overlay, seeds)
	}
	by, err = m.failing(ctx, overlay, "-run", "^"+m.test+"$", "./"+m.dir)
	if err == nil && by != m.test {
		err = fmt.Errorf("%s does not fail", m.test)
	}
	return by, err
}

// overlay writes the file with the fault, and the file that gives it to the compiler.
func (m mutant) overlay(dir string) (name string, err error) {
	path, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	file, name := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: file}})
	if err != nil {
		return "", err
	}
	return name, errors.Join(os.WriteFile(file, m.content, 0o600), os.WriteFile(name, replace, 0o600))
}

var (
	errNoViolation = errors.New("the simulation finds nothing")
	violation      = regexp.MustCompile(`(?m)^violation: seed=(\d+) step=(\d+) invariant=(\S+)`)
)

// simulate builds the simulation with a fault, and runs seeds until one breaks an invariant.
func simulate(ctx context.Context, dir, overlay string, seeds int) (by string, err error) {
	binary := filepath.Join(dir, "sim.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %w\n%s", errDoesNotCompile, err, out)
	}
	start := time.Now()
	out, err := exec.CommandContext(ctx, binary, "-test.run", "TestSim$", "-test.timeout", "20m", "-shrink=false", "-seeds", fmt.Sprint(seeds)).CombinedOutput()
	if found := violation.FindSubmatch(out); found != nil {
		return fmt.Sprintf("%s at seed %s, step %s (%s)", found[3], found[1], found[2], time.Since(start).Round(time.Second)), nil
	}
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return "", fmt.Errorf("%w in %d seeds", errNoViolation, seeds)
}
