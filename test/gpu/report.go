package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// table is a result as Markdown.
func (r Result) table() string {
	var out strings.Builder
	fmt.Fprintf(&out, "# %s\n\n%s\n\n", r.title(), r.machine())
	out.WriteString("| part | question | verdict | what was seen, or why it was not tried |\n|---|---|---|---|\n")
	for _, l := range r.Lines {
		fmt.Fprintf(&out, "| %s | %s | %s | %s |\n", l.Part, l.Name, l.Verdict, cell(l.Says))
	}
	out.WriteString(r.sharing())
	return out.String()
}

// cell is a text inside a table.
func cell(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", `\|`)
}

func (r Result) title() string { return fmt.Sprintf("%s, driver %s, %s", r.GPU, r.Driver, r.Date) }

func (r Result) machine() string {
	return fmt.Sprintf("%d GPUs, the first of %d MiB; Linux %s.", r.GPUs, r.MemoryMiB, r.Linux)
}

// sharing is the table of programs that share a GPU.
func (r Result) sharing() string {
	if len(r.Sharing) == 0 {
		return ""
	}
	var out strings.Builder
	out.WriteString("\n| shared by | programs | kernels/s | of exclusive use | p50 (ms) | p99 (ms) | spread | start-up (s) | failed |\n|---|---|---|---|---|---|---|---|---|\n")
	alone := r.exclusive()
	for _, s := range r.Sharing {
		for _, p := range s.Points {
			fmt.Fprintf(&out, "| %s | %d | %.0f | %s | %.2f | %.2f | %.2f | %.2f | %d |\n", s.How, p.Sharers, p.PerSecond, ratio(p.PerSecond, alone), p.P50, p.P99, p.Spread, p.Start, p.Failed)
		}
	}
	return out.String()
}

// exclusive is how many kernels a second one program alone ran, without a limit or a daemon.
func (r Result) exclusive() float64 {
	s, _ := r.series(timeSlicing)
	p, _ := s.at(1)
	return p.PerSecond
}

func ratio(a, b float64) string {
	if b == 0 {
		return "?"
	}
	return fmt.Sprintf("%.2f", a/b)
}

// over is the result with the parts of an older one, of the same machine and day, that were not
// asked now.
func (r Result) over(old Result) Result {
	asked := func(part string) bool {
		return slices.ContainsFunc(r.Lines, func(l Line) bool { return l.Part == part })
	}
	kept := slices.DeleteFunc(old.Lines, func(l Line) bool { return asked(l.Part) })
	r.Lines = append(kept, r.Lines...)
	slices.SortStableFunc(r.Lines, func(a, b Line) int { return cmp.Compare(place(a.Part), place(b.Part)) })
	if len(r.Sharing) == 0 {
		r.Sharing = old.Sharing
	}
	r.SMs = max(r.SMs, old.SMs)
	return r
}

// place is where a part stands in a table: that of all runs is the last.
func place(name string) int {
	i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
	if i < 0 {
		return len(parts)
	}
	return i
}

// write puts the result into a folder: as JSON, as Markdown, and as pictures. It returns the path
// without the ending.
func (r Result) write(dir string) (string, error) {
	there, err := readResults(dir)
	if err != nil {
		return "", err
	}
	for _, old := range there {
		if old.name() == r.name() {
			r = r.over(old)
		}
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, r.name())
	err = errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(path+".json", append(data, '\n'), 0o644))
	if err != nil {
		return "", err
	}
	for ending, text := range r.drawn() {
		err = errors.Join(err, os.WriteFile(path+ending, []byte(text), 0o644))
	}
	return path, err
}

// drawn is all that is made of a result's JSON, by the ending of its file.
func (r Result) drawn() map[string]string {
	files := map[string]string{".md": r.table()}
	if len(r.Sharing) > 0 {
		files["-throughput.svg"] = r.throughput()
		files["-latency.svg"] = r.latency()
	}
	return files
}

// readResults reads all results of a folder, the newest first.
func readResults(dir string) (all []Result, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var r Result
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if want := r.name() + ".json"; filepath.Base(path) != want {
			return nil, fmt.Errorf("%s: its name must be %s", path, want)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Result) int { return cmp.Or(cmp.Compare(b.Date, a.Date), cmp.Compare(a.name(), b.name())) })
	return all, nil
}

const pageBegin = `<!-- This page is made of test/gpu/results: test/gpu/run.sh -page makes it. -->
# What was seen on hardware

`

const pageNone = `Nothing yet. gpumem has run on simulated GPUs only: [limits](limits.md) says which of its statements come from NVIDIA's documents, and
[the simulated driver](../test/fakenvml/README.md) what stands in for a GPU. Be the first to add a row.
`

const pageEnd = `
## Add a row

On a machine with an NVIDIA GPU that is otherwise unused, with the driver, and as root:

` + "```text" + `
test/gpu/run.sh            # all parts; -list names them, -parts mps,daemon runs some
` + "```" + `

Each part takes 8 minutes at most. A part says of each question pass, fail, or why it could not be tried. The kit compares compute mode, MIG mode and
clocks at its end with those at its start. Ctrl-C ends it, and what it has set up is taken away. It needs Go and gcc, or a prebuilt kit: ` + "`test/gpu/run.sh -pack kit.tar.gz`" + ` makes one on another machine, of 60 MiB
at most, and the one with the GPU then needs no network and neither Go nor gcc.

It writes JSON, a table and two pictures into ` + "`test/gpu/results`" + `, named by GPU, driver and date. Then ` + "`test/gpu/run.sh -page`" + ` makes this page of them. Commit
all of it, and open a pull request.
`

// page is docs/hardware.md.
func page(all []Result) string {
	var out strings.Builder
	out.WriteString(pageBegin)
	if len(all) == 0 {
		out.WriteString(pageNone)
	} else {
		out.WriteString("| GPU | driver | date | pass | fail | not tried |\n|---|---|---|---|---|---|\n")
	}
	for _, r := range all {
		n := make(map[Verdict]int)
		for _, l := range r.Lines {
			n[l.Verdict]++
		}
		fmt.Fprintf(&out, "| [%s](../test/gpu/results/%s.md) | %s | %s | %d | %d | %d |\n", r.GPU, r.name(), r.Driver, r.Date, n[Pass], n[Fail], n[NotTried])
	}
	for _, r := range all {
		fmt.Fprintf(&out, "\n## %s\n\n%s\n", r.title(), r.machine())
		if r.failed() > 0 {
			out.WriteString("\nWhat failed:\n\n")
		}
		for _, l := range r.Lines {
			if l.Verdict == Fail {
				fmt.Fprintf(&out, "- %s, %s: %s\n", l.Part, l.Name, l.Says)
			}
		}
		if len(r.Sharing) > 0 {
			for _, what := range []string{"throughput", "latency"} {
				fmt.Fprintf(&out, "\n![%s by programs that share the GPU](../test/gpu/results/%s-%s.svg)\n", what, r.name(), what)
			}
		}
	}
	out.WriteString(pageEnd)
	return out.String()
}
