// Package gpu holds the kit for machines with GPUs (README.md) and generates docs/hardware.md from
// its results.
package gpu

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// unavailable lists the days on which a GPU was requested and none was available.
var unavailable = []string{"27 November 2026", "28 November 2026"}

// record is a line of results.jsonl that the page shows. kit.py writes it.
type record struct {
	Step, What, Claim         string
	Holds                     *bool
	NotTried                  string `json:"not_tried"`
	CutOff                    string `json:"cut_off"`
	Error                     any
	Dry                       bool
	Date, Commit, Driver, GPU string
	Linux, Kind, How          string
	GPUs, MemoryMiB, Sharers  int
	PerSecond                 float64 `json:"per_s"`
	P50, P99                  float64

	details string // the other fields
}

// report has the records of one GPU and driver.
type report struct {
	machines []record // one for each run
	rows     []record // the newest of each step and statement
	sharing  []record
}

// readReports reads all results of a folder, by GPU and driver.
func readReports(folder string) (map[string]*report, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	reports := make(map[string]*report)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var r *report
		for i, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
			l, err := readRecord(line)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", file, i+1, err)
			}
			switch {
			case l.What == "machine" && l.Dry:
				return nil, fmt.Errorf("%s:%d: a dry run is not a result", file, i+1)
			case l.What == "machine":
				name := l.GPU + ", driver " + l.Driver
				if r = reports[name]; r == nil {
					r = new(report)
					reports[name] = r
				}
				r.machines = append(r.machines, l)
			case r == nil:
				return nil, fmt.Errorf("%s:%d: the line with the machine is missing", file, i+1)
			case l.What != "":
				r.add(l)
			}
		}
	}
	return reports, err
}

func readRecord(line []byte) (l record, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return l, err
	}
	if what := string(fields["what"]); !slices.Contains([]string{`"machine"`, `"claim"`, `"step"`, `"sharing"`}, what) {
		return l, nil
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return l, err
	}
	var details []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains([]string{"t", "step", "what", "claim", "holds"}, name) {
			details = append(details, name+": "+strings.Trim(string(fields[name]), `"`))
		}
	}
	l.details = strings.Join(details, "; ")
	return l, nil
}

// add adds a record. It replaces the record of an earlier run.
func (r *report) add(l record) {
	to, same := &r.rows, func(o record) bool { return o.Step == l.Step && o.Claim == l.Claim }
	if l.What == "sharing" {
		to, same = &r.sharing, func(o record) bool { return o.Kind == l.Kind && o.How == l.How && o.Sharers == l.Sharers }
	}
	*to = slices.DeleteFunc(*to, same)
	if l.What != "step" || l.NotTried != "" || l.CutOff != "" || l.Error != nil {
		*to = append(*to, l)
	}
}

var notInNames = regexp.MustCompile(`[^a-z0-9.]+`)

// page returns docs/hardware.md and the pictures in it by their paths, relative to docs.
func page(reports map[string]*report) map[string]string {
	var out strings.Builder
	out.WriteString("<!-- Generated from test/gpu/results: make update. -->\n# Results on hardware\n\n")
	if len(reports) == 0 {
		out.WriteString("**No result from a real GPU exists yet.** gpumem has run on [simulated GPUs](../test/fakenvml/README.md) only.\n")
	}
	fmt.Fprintf(&out, "\nDays on which a GPU was requested and none was available: %s.\n\n", strings.Join(unavailable, ", "))
	out.WriteString("[The kit](../test/gpu/README.md) measures a machine in a few minutes. Contributions of results are welcome: it describes how to add them.\n")
	pictures := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(reports)) {
		r := reports[name]
		fmt.Fprintf(&out, "\n## %s\n\n", name)
		for _, m := range r.machines {
			fmt.Fprintf(&out, "- %s, commit %s, GPUs: %d, memory of the first: %d MiB, Linux %s\n", m.Date, m.Commit, m.GPUs, m.MemoryMiB, m.Linux)
		}
		out.WriteString("\n| step | statement | result | details |\n|---|---|---|---|\n")
		for _, l := range r.rows {
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", l.Step, cell(l.Claim), l.verdict(), cell(l.details))
		}
		if len(r.sharing) == 0 {
			continue
		}
		out.WriteString("\n| requests | sharing | programs | requests/s | p50 (ms) | p99 (ms) |\n|---|---|---|---|---|---|\n")
		for _, l := range r.sharing {
			fmt.Fprintf(&out, "| %s | %s | %d | %.1f | %.2f | %.2f |\n", l.Kind, l.How, l.Sharers, l.PerSecond, l.P50, l.P99)
		}
		for _, unit := range []string{"requests/s", "p99 (ms)"} {
			file := "../test/gpu/results/" + strings.Trim(notInNames.ReplaceAllString(strings.ToLower(name+"-"+unit), "-"), "-") + ".svg"
			pictures[file] = draw(name+": "+unit+" by the number of programs", r.sharing, func(l record) float64 {
				return map[string]float64{"requests/s": l.PerSecond, "p99 (ms)": l.P99}[unit]
			})
			fmt.Fprintf(&out, "\n![%s by the number of programs](%s)\n", unit, file)
		}
	}
	pictures["hardware.md"] = out.String()
	return pictures
}

func (l record) verdict() string {
	switch {
	case l.What == "step":
		return "ended early"
	case l.Holds == nil:
		return "not tried"
	case *l.Holds:
		return "seen"
	}
	return "**refuted**"
}

// cell returns a text for a cell of a table.
func cell(s string) string {
	if runes := []rune(s); len(runes) > 240 {
		s = string(runes[:240]) + "…"
	}
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", `\|`)
}

// draw returns an SVG with one curve for each way to share and kind of request, over a logarithmic number of programs.
func draw(title string, points []record, value func(record) float64) string {
	const width, height, left, top, right, bottom = 720, 420, 70, 40, 520, 380
	most, curves, names := 1.0, make(map[string][]record), []string(nil)
	for _, p := range points {
		name := p.How + ", " + p.Kind
		if curves[name] == nil {
			names = append(names, name)
		}
		curves[name], most = append(curves[name], p), max(most, value(p))
	}
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12"><rect width="%d" height="%d" fill="white"/>`+"\n", width, height, width, height)
	fmt.Fprintf(&out, `<text x="10" y="20" font-weight="bold">%s</text>`+"\n", html.EscapeString(title))
	x := func(n int) float64 { return left + (right-left)*math.Log2(float64(n))/3 } // 1 to 8 programs
	for i := range 5 {
		y := bottom - (bottom-top)*float64(i)/4
		fmt.Fprintf(&out, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.4g</text>`+"\n", left, y, right, left-6, y+4, most*float64(i)/4)
	}
	for n := 1; n <= 8; n *= 2 {
		fmt.Fprintf(&out, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", x(n), bottom+18, n)
	}
	colours := []string{"#4477aa", "#66ccee", "#228833", "#ee6677", "#aa3377", "#ccbb44"}
	for i, name := range names {
		var line []string
		for _, p := range curves[name] {
			line = append(line, fmt.Sprintf("%.1f,%.1f", x(p.Sharers), bottom-(bottom-top)*value(p)/most))
		}
		colour, y := colours[i%len(colours)], top+20*i
		fmt.Fprintf(&out, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(line, " "), colour)
		fmt.Fprintf(&out, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", right+16, y, colour, html.EscapeString(name))
	}
	out.WriteString("</svg>\n")
	return out.String()
}
