package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/replay"
)

//go:embed report.html.tmpl
var reportPage string

// report is what the page shows.
type report struct {
	Name             string
	Nodes, Pods      int
	Capacity, Demand gpu.Units
	Seeds            int
	Allocated        plot
	Fragmented       plot
	Policies         []policyReport
}

// plot is a set of curves over arrived demand, in a box of 700 by 320 with the
// names of the curves at their ends.
type plot struct {
	Lines []line
	Grid  []gridLine
	Ticks []tick
}

type line struct {
	Policy, Colour, Points string
	KeyY                   float64 // where its name stands
}

type gridLine struct {
	Y     float64
	Label string
}

type tick struct {
	X     float64
	Label string
}

type policyReport struct {
	Policy, Colour string
	At100, At130   float64
	First          float64
	Heat           []heatCell
	Height         int
	Lost           []bar
}

// heatCell are the GPUs of one shade, as a path of squares.
type heatCell struct {
	Colour, Path string
}

type bar struct {
	Kind  string
	Width float64
	Units int64
}

// colours tell policies apart on light and on dark, after Okabe and Ito's, which
// people who see few colours can tell apart as well.
func colours() []string {
	return []string{"#2b83c6", "#d55e00", "#009e73", "#cc79a7", "#d99000", "#56b4e9", "#8c8c8c", "#a9744f", "#8f7fe0"}
}

// Page writes all that the records show, as a page that is whole in itself.
func Page(w io.Writer, t replay.Trace, records []replay.Record) error {
	return render(w, "report", t, records, func(r report) any { return r })
}

// Allocated writes the plot of how much is allocated, as an SVG.
func Allocated(w io.Writer, t replay.Trace, records []replay.Record) error {
	return render(w, "plot", t, records, func(r report) any { return r.Allocated })
}

// Fragmented writes the plot of how much of what is free no pod can use, as an SVG.
func Fragmented(w io.Writer, t replay.Trace, records []replay.Record) error {
	return render(w, "plot", t, records, func(r report) any { return r.Fragmented })
}

func render(w io.Writer, name string, t replay.Trace, records []replay.Record, of func(report) any) error {
	page, err := template.New("report").Parse(reportPage)
	if err != nil {
		return err
	}
	groups := byPolicy(records)
	r := report{Name: t.Name, Nodes: len(t.Nodes), Pods: len(t.Pods), Capacity: t.Capacity(), Demand: t.Demand(), Seeds: len(groups[0])}
	allocated := func(r replay.Record) []float64 { return r.Allocated }
	fragmented := func(r replay.Record) []float64 { return r.Fragmented }
	r.Allocated, r.Fragmented = newPlot(groups, allocated, 60), newPlot(groups, fragmented, 0)
	most := gpu.Units(1)
	for _, g := range groups {
		for _, t := range g[0].Turned {
			most = max(most, t.Units)
		}
	}
	for i, g := range groups {
		r.Policies = append(r.Policies, newPolicyReport(g, colours()[i%len(colours())], most))
	}
	return page.ExecuteTemplate(w, name, of(r))
}

// newPlot draws the mean over seeds of a measure, from a per cent of arrived
// demand on.
func newPlot(groups [][]replay.Record, of func(replay.Record) []float64, from int) plot {
	const left, right, top, bottom = 40, 570, 10, 295
	var curves [][]float64
	low, high := 100.0, 0.0
	for _, g := range groups {
		curve := average(g, of)
		for _, v := range curve[min(from, len(curve)):] {
			low, high = min(low, v), max(high, v)
		}
		curves = append(curves, curve)
	}
	marks := roundMarks(low, max(high, low+1))
	low, high = marks[0], marks[len(marks)-1]
	y := func(v float64) float64 { return bottom - (bottom-top)*(v-low)/(high-low) }
	x := func(at int) float64 { return left + (right-left)*float64(at-from)/float64(max(1, 130-from)) }
	var p plot
	for _, v := range marks {
		p.Grid = append(p.Grid, gridLine{Y: y(v), Label: fmt.Sprintf("%.0f%%", v)})
	}
	for at := from; at <= 130; at += 10 {
		p.Ticks = append(p.Ticks, tick{X: x(at), Label: fmt.Sprint(at, "%")})
	}
	for i, curve := range curves {
		var points strings.Builder
		for at := from; at < len(curve); at++ {
			fmt.Fprintf(&points, "%.1f,%.1f ", x(at), y(curve[at]))
		}
		l := line{Policy: groups[i][0].Policy, Colour: colours()[i%len(colours())], Points: points.String()}
		if len(curve) > 0 {
			l.KeyY = y(curve[len(curve)-1])
		}
		p.Lines = append(p.Lines, l)
	}
	partNames(p.Lines)
	return p
}

// roundMarks returns whole numbers in equal steps, from low or less to high or more.
func roundMarks(low, high float64) (marks []float64) {
	step := 20.0
	for _, s := range []float64{10, 5, 2, 1} {
		if (high-low)/s <= 7 {
			step = s
		}
	}
	for v := step * math.Floor(low/step); v < math.Ceil(high/step)*step+step/2; v += step {
		marks = append(marks, v)
	}
	return marks
}

// partNames moves names that would be printed over one another.
func partNames(lines []line) {
	const height = 14
	order := make([]*line, len(lines))
	for i := range lines {
		order[i] = &lines[i]
	}
	slices.SortStableFunc(order, func(a, b *line) int { return cmp.Compare(b.KeyY, a.KeyY) })
	for i := 1; i < len(order); i++ {
		order[i].KeyY = min(order[i].KeyY, order[i-1].KeyY-height)
	}
}

func average(records []replay.Record, of func(replay.Record) []float64) []float64 {
	length := len(of(records[0]))
	for _, r := range records {
		length = min(length, len(of(r)))
	}
	out := make([]float64, length)
	for _, r := range records {
		for i := range out {
			out[i] += of(r)[i] / float64(len(records))
		}
	}
	return out
}

func newPolicyReport(records []replay.Record, colour string, most gpu.Units) policyReport {
	first := records[0]
	p := policyReport{Policy: first.Policy, Colour: colour, At100: mean(records, 100), At130: mean(records, 130), First: first.FirstFailure}
	p.Heat, p.Height = heat(first.Fleet)
	for i, t := range first.Turned {
		if i == 12 {
			break
		}
		p.Lost = append(p.Lost, bar{Kind: t.Kind, Width: 400 * float64(t.Units) / float64(most), Units: int64(t.Units)})
	}
	return p
}

// heat draws a column of squares for each node, in rows as wide as the page.
func heat(fleet [][]int) ([]heatCell, int) {
	const width = 700
	side := max(4, min(14, width/max(1, len(fleet))))
	perRow := width / side
	tallest := 1
	for _, gpus := range fleet {
		tallest = max(tallest, len(gpus))
	}
	height := tallest*side + side
	var paths [11]strings.Builder
	for i, gpus := range fleet {
		for k, used := range gpus {
			x, y := (i%perRow)*side, (i/perRow)*height+k*side
			fmt.Fprintf(&paths[min(10, max(0, used)/10)], "M%d %dh%dv%dh-%dz", x, y, side-1, side-1, side-1)
		}
	}
	var out []heatCell
	for shade := range paths {
		if paths[shade].Len() > 0 {
			out = append(out, heatCell{Colour: fmt.Sprintf("hsl(210 60%% %d%%)", 90-6*shade), Path: paths[shade].String()})
		}
	}
	return out, (len(fleet) + perRow - 1) / perRow * height
}
