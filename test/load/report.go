package load

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// figure is one value, measured in several rounds.
type figure struct {
	Name   string               `json:"name"` // section, side and metric
	Unit   string               `json:"unit"`
	Rounds []float64            `json:"rounds"`
	Ratios map[string][]float64 `json:"ratios,omitempty"` // by the side that divides, round by round
}

// goal is the limit of a figure, or of its ratio to another side.
type goal struct {
	figure  string
	over    string // the side that divides; empty: the figure itself
	limit   float64
	stretch float64 // 0: none
	least   bool    // the limit is a minimum
}

var goals = []goal{
	{"inprocess-500-plugin-cpu-ms", plain, 0.45, 0.30, false},
	{"inprocess-5000-plugin-cpu-ms", plain, 0.40, 0.20, false},
	{"cluster-500-plugin-cpu-scheduler", plain, 0.75, 0.60, false},
	{"cluster-5000-plugin-cpu-scheduler", plain, 0.55, 0.40, false},
	{"cluster-500-plugin-cpu-all", plain, 0.95, 0.87, false},
	{"cluster-5000-plugin-cpu-all", plain, 0.88, 0.78, false},
	{"cluster-500-plugin-pods-per-second", plain, 1.0, 1.2, true},
	{"cluster-5000-plugin-pods-per-second", plain, 1.2, 1.5, true},
	{"cluster-500-plugin-burst-p99", plain, 1.0, 0.8, false},
	{"cluster-5000-plugin-burst-p99", plain, 1.0, 0.8, false},
	{"cluster-500-plugin-memory", plain, 1.15, 1.10, false},
	{"cluster-5000-plugin-memory", plain, 1.30, 1.20, false},
	{"cluster-500-extender-cpu-all", plain, 1.30, 1.20, false},
	{"cluster-5000-extender-cpu-all", plain, 1.30, 1.20, false},
	{"cluster-500-plugin-refused-binds", "", 0.5, 0, false},
	{"cluster-5000-plugin-refused-binds", "", 0.5, 0, false},
	{"cluster-500-extender-refused-binds", "", 0.5, 0, false},
	{"cluster-5000-extender-refused-binds", "", 0.5, 0, false},
	{"worst-plugin-hints-fail", before, 1.1, 1.0, false},
	{"worst-plugin-no-node-fits", before, 1.1, 1.0, false},
	{"worst-plugin-one-node-fits", before, 1.1, 1.0, false},
	{"index-50000-ms", "", 0.2, 0.1, false},
	{"extender-5000-filter-of-null", "", 2.5, 0, false},
	{"stress-errors", "", 0, 0, false},
	{"stress-overcommitted", "", 0, 0, false},
	{"memory-per-node-KiB", "", 12, 0, false},
	{"memory-per-pod-KiB", "", 5, 0, false},
	{"kubelet-pod-start-gpu", without, 1.05, 0, false},
	{"kubelet-comeback-max", "", 1, 0, false},
}

// report collects figures and logs each.
type report struct {
	log      io.Writer
	section  string
	sections []string
	figures  []figure
}

func (r *report) add(name, unit string, rounds ...float64) {
	r.put(figure{Name: r.section + "-" + name, Unit: unit, Rounds: rounds})
}

func (r *report) put(f figure) {
	fmt.Fprintln(r.log, f)
	r.figures = append(r.figures, f)
}

// metrics are the values of one side in one round, by name and unit: "burst-p99 s".
type metrics map[string]float64

// compare measures the sides in turn and adds each metric of each side, with its ratio to the same
// metric of each base.
func (r *report) compare(ctx context.Context, name string, sides, bases []string, rounds int, measure func(ctx context.Context, side string) (metrics, error)) error {
	measured := make(map[string][]metrics)
	for round := range rounds {
		for _, side := range order(sides, round) {
			m, err := measure(ctx, side)
			if err != nil {
				return fmt.Errorf("%s, round %d, %s: %w", name, round+1, side, err)
			}
			measured[side] = append(measured[side], m)
			fmt.Fprintf(r.log, "%s%s round %d: %-8s %s\n", r.section, name, round+1, side, m)
		}
	}
	for _, side := range sides {
		for _, metric := range slices.Sorted(maps.Keys(measured[side][0])) {
			metricName, unit, _ := strings.Cut(metric, " ")
			f := figure{Name: strings.TrimSuffix(r.section+name+"-"+side+"-"+metricName, "-"), Unit: unit}
			for _, m := range measured[side] {
				f.Rounds = append(f.Rounds, m[metric])
			}
			for _, base := range bases {
				if base == side || len(measured[base]) == 0 {
					continue
				}
				for i, m := range measured[base] {
					if m[metric] > 0 {
						if f.Ratios == nil {
							f.Ratios = make(map[string][]float64)
						}
						f.Ratios[base] = append(f.Ratios[base], f.Rounds[i]/m[metric])
					}
				}
			}
			r.put(f)
		}
	}
	return nil
}

// order returns the sides in the order of a round. For an even number of sides, each side runs once
// in each place, and once after each other side, within as many rounds as there are sides.
func order(sides []string, round int) []string {
	n := len(sides)
	out := make([]string, n)
	for i := range n {
		at := (i + 1) / 2 // 0, 1, n-1, 2, n-2, ...
		if i%2 == 0 {
			at = n - at
		}
		out[i] = sides[(at+round)%n]
	}
	return out
}

// median returns the median, the lowest and the highest value.
func median(values []float64) (mid, low, high float64) {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]
}

// quantile returns a value of a sorted list.
func quantile[T any](sorted []T, part float64) T { return sorted[int(part*float64(len(sorted)-1))] }

func spread(values []float64) string {
	mid, low, high := median(values)
	if len(values) == 1 {
		return number(mid)
	}
	return fmt.Sprintf("%s (%s to %s)", number(mid), number(low), number(high))
}

// number formats three significant digits.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v > 0 && v < 0.1:
		return fmt.Sprintf("%.3f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (m metrics) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		label, unit, _ := strings.Cut(name, " ")
		parts = append(parts, strings.TrimSpace(label+" "+number(m[name])+" "+unit))
	}
	return strings.Join(parts, ", ")
}

func (f figure) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-40s %s %s", f.Name, spread(f.Rounds), f.Unit)
	for _, base := range slices.Sorted(maps.Keys(f.Ratios)) {
		fmt.Fprintf(&b, "  ÷ %s %s", base, spread(f.Ratios[base]))
	}
	return strings.TrimRight(b.String(), " ")
}

// String returns all figures, and a line for each goal of the selected sections.
func (r *report) String() string {
	var b strings.Builder
	for _, f := range r.figures {
		fmt.Fprintln(&b, f)
	}
	for _, g := range goals {
		section, _, _ := strings.Cut(g.figure, "-")
		if slices.Contains(r.sections, section) {
			fmt.Fprintln(&b, g.result(r.figures))
		}
	}
	return b.String()
}

// result compares a figure with its goal.
func (g goal) result(figures []figure) string {
	name, sign := g.figure, "<="
	if g.over != "" {
		name += "÷" + g.over
	}
	if g.least {
		sign = ">="
	}
	text := fmt.Sprintf("goal %s %s", sign, number(g.limit))
	if g.stretch != 0 {
		text += fmt.Sprintf(" (stretch %s)", number(g.stretch))
	}
	i := slices.IndexFunc(figures, func(f figure) bool { return f.Name == g.figure })
	if i < 0 || g.over != "" && figures[i].Ratios[g.over] == nil {
		return fmt.Sprintf("result: %s not measured, %s", name, text)
	}
	values := figures[i].Rounds
	if g.over != "" {
		values = figures[i].Ratios[g.over]
	}
	mid, low, high := median(values)
	verdict := "missed"
	if g.least && mid >= g.limit || !g.least && mid <= g.limit {
		verdict = "met"
	}
	return fmt.Sprintf("result: %s %s %s %s (rounds: %s to %s)", name, number(mid), text, verdict, number(low), number(high))
}
