package load

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpumem/gpumem/test/checkout"
)

// goBenchmark is a Go benchmark that stands beside the code that it measures, or in the tests of this
// package.
type goBenchmark struct{ section, folder, pattern string }

var benchmarks = []goBenchmark{
	{"index", "pkg/core/cache", "^BenchmarkBest$/^50000$"},
	{"extender", "test/load", "^BenchmarkVerbs$"},
	{"stress", "test/load", "^BenchmarkStress$"},
	{"memory", "test/load", "^BenchmarkMemory$"},
	{"node", "pkg/node/deviceplugin", "^BenchmarkStart$"},
	{"cli", "cmd/kubectl-inspect-gpumem", "^BenchmarkLargeCluster$"},
}

// goBenchmarks runs the Go benchmarks of the section and adds each value of each.
func goBenchmarks(ctx context.Context, opts options, r *report) error {
	for _, b := range benchmarks {
		if b.section != r.section {
			continue
		}
		program, err := compile(ctx, b.folder)
		if err != nil {
			return err
		}
		lines, err := program.run(ctx, b.pattern, "-test.count", strconv.Itoa(opts.rounds))
		if err != nil {
			return err
		}
		for len(lines) > 0 { // one figure of each value, over all lines with the same name
			var rest []benchmarkLine
			var rounds []float64
			for _, line := range lines {
				if line.name == lines[0].name {
					rounds = append(rounds, line.value)
				} else {
					rest = append(rest, line)
				}
			}
			r.add(lines[0].name, "", rounds...)
			lines = rest
		}
	}
	return nil
}

// testBinary is the compiled test of a package.
type testBinary struct{ file, dir string }

// compile builds the test of the package in a folder of the checkout into bin.
func compile(ctx context.Context, folder string) (testBinary, error) {
	root, err := checkout.Root()
	if err != nil {
		return testBinary{}, err
	}
	dir := filepath.Join(root, folder)
	out := testBinary{filepath.Join(root, "bin", filepath.Base(dir)+".test"), dir}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", out.file, ".")
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return testBinary{}, fmt.Errorf("compile the test of %s: %w\n%s", folder, err, text)
	}
	return out, nil
}

// benchmarkLine is one value of one run of a benchmark.
type benchmarkLine struct {
	name  string
	value float64
}

// run runs the benchmarks that match.
func (b testBinary) run(ctx context.Context, pattern string, flags ...string) ([]benchmarkLine, error) {
	cmd := exec.CommandContext(ctx, b.file, append([]string{"-test.run", "^$", "-test.bench", pattern, "-test.timeout", "60m"}, flags...)...)
	cmd.Dir = b.dir
	var problem bytes.Buffer // apart: logs would break the lines of the benchmarks
	cmd.Stderr = &problem
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s%s", cmd, err, text, problem.Bytes())
	}
	return readBenchmarks(string(text)), nil
}

// benchmarkFormat is a line of a benchmark: its name, the processors, the iterations and the values.
var benchmarkFormat = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.+)$`)

// readBenchmarks reads the output of go test -bench. The time of BenchmarkBest/50000 is named
// "50000-ms". Without a sub-benchmark its name is "ms".
func readBenchmarks(text string) (out []benchmarkLine) {
	for line := range strings.Lines(text) {
		match := benchmarkFormat.FindStringSubmatch(strings.TrimSpace(line))
		if match == nil {
			continue
		}
		_, sub, _ := strings.Cut(match[1], "/")
		fields := strings.Fields(match[2])
		for i := 0; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			unit := fields[i+1]
			if unit == "ns/op" {
				value, unit = value/1e6, "ms"
			}
			if err == nil {
				out = append(out, benchmarkLine{strings.TrimPrefix(strings.ReplaceAll(sub, "/", "-")+"-"+unit, "-"), value})
			}
		}
	}
	return out
}

// inProcess compares the sides of BenchmarkBurst, each in a new process. The control is
// kube-scheduler alone again.
func inProcess(ctx context.Context, opts options, r *report) error {
	program, err := compile(ctx, "test/scheduler")
	if err != nil {
		return err
	}
	for _, nodes := range opts.nodes {
		sides := []string{plain, control, plugin}
		err := r.compare(ctx, fmt.Sprintf("-%d", nodes), sides, sides[:2], opts.rounds, func(ctx context.Context, side string) (metrics, error) {
			if side == control {
				side = plain
			}
			lines, err := program.run(ctx, fmt.Sprintf("^BenchmarkBurst$/^%d$/^%s$", nodes, side), "-test.benchtime", fmt.Sprintf("%dx", opts.pods))
			m := make(metrics)
			for _, line := range lines {
				m[strings.TrimPrefix(line.name, fmt.Sprintf("%d-%s-", nodes, side))] = line.value
			}
			return m, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
