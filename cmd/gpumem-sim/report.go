package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/gpumem/gpumem/pkg/gpu"
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

// plot is a set of curves over arrived demand, in a box of 700 by 300.
type plot struct {
	Low, High float64
	Lines     []line
	Grid      []gridLine
	Ticks     []tick
}

type line struct {
	Policy, Colour, Points string
	KeyY                   int // where its name stands
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

// colours tell policies apart; Okabe and Ito's, which people who see few colours
// can tell apart as well.
func colours() []string {
	return []string{"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#8B4513"}
}

func writeReport(w io.Writer, t replay.Trace, records []replay.Record) error {
	return render(w, "report", t, records, func(r report) any { return r })
}

// writePlot writes one of the report's plots as an SVG.
func writePlot(w io.Writer, t replay.Trace, records []replay.Record, of func(report) plot) error {
	return render(w, "plot", t, records, func(r report) any { return of(r) })
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
	var curves [][]float64
	p := plot{Low: 100, High: 0}
	for _, g := range groups {
		curve := average(g, of)
		for _, v := range curve[min(from, len(curve)):] {
			p.Low, p.High = min(p.Low, v), max(p.High, v)
		}
		curves = append(curves, curve)
	}
	p.High = max(p.High, p.Low+1)
	y := func(v float64) float64 { return 290 - 280*(v-p.Low)/(p.High-p.Low) }
	x := func(at int) float64 { return 40 + 640*float64(at-from)/float64(max(1, 130-from)) }
	for at := from; at <= 130; at += 10 {
		p.Ticks = append(p.Ticks, tick{X: x(at), Label: fmt.Sprint(at, "%")})
	}
	for i, curve := range curves {
		var points strings.Builder
		for at := from; at < len(curve); at++ {
			fmt.Fprintf(&points, "%.1f,%.1f ", x(at), y(curve[at]))
		}
		p.Lines = append(p.Lines, line{Policy: groups[i][0].Policy, Colour: colours()[i%len(colours())], Points: points.String(), KeyY: 180 + 14*i})
	}
	for i := range 6 {
		v := p.Low + (p.High-p.Low)*float64(i)/5
		p.Grid = append(p.Grid, gridLine{Y: y(v), Label: fmt.Sprintf("%.1f", v)})
	}
	return p
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

// heat draws a column of squares for each node, in rows of 175 nodes.
func heat(fleet [][]int) ([]heatCell, int) {
	const perRow, side = 175, 4
	tallest := 1
	for _, gpus := range fleet {
		tallest = max(tallest, len(gpus))
	}
	var paths [11]strings.Builder
	for i, gpus := range fleet {
		for k, used := range gpus {
			x, y := (i%perRow)*side, (i/perRow)*(tallest*side+6)+k*side
			fmt.Fprintf(&paths[min(10, max(0, used)/10)], "M%d %dh3v3h-3z", x, y)
		}
	}
	var out []heatCell
	for shade := range paths {
		if paths[shade].Len() > 0 {
			out = append(out, heatCell{Colour: fmt.Sprintf("hsl(210 60%% %d%%)", 92-7*shade), Path: paths[shade].String()})
		}
	}
	return out, (len(fleet)/perRow + 1) * (tallest*side + 6)
}
