package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// The size of a picture, and of what is around its axes.
const (
	width, height                         = 660, 420
	marginLeft, marginTop, marginRight, x = 70, 60, 170, 50 // x: below the axis
)

var colours = []string{"#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee"}

// curve is one line of a picture.
type curve struct {
	name   string
	dashed bool
	wide   float64 // of curves that are alike, each shows below the next
	colour string
	points []Point
	value  func(Point) float64
}

// throughput draws how many kernels the programs ran together.
func (r Result) throughput() string {
	var curves []curve
	for i, s := range r.Sharing {
		curves = append(curves, curve{s.How, false, wide(i), colours[i%len(colours)], s.Points, func(p Point) float64 { return p.PerSecond }})
	}
	return draw("Throughput of all programs together", r.title(), "kernels/s", curves)
}

// latency draws how long a kernel took.
func (r Result) latency() string {
	var curves []curve
	for i, s := range r.Sharing {
		colour := colours[i%len(colours)]
		curves = append(curves, curve{s.How + ", p50", false, wide(i), colour, s.Points, func(p Point) float64 { return p.P50 }},
			curve{s.How + ", p99", true, wide(i), colour, s.Points, func(p Point) float64 { return p.P99 }})
	}
	return draw("Time until a kernel is done: the median program's p50, the worst one's p99", r.title(), "ms", curves)
}

// wide is how wide the curves of a way to share are, which is the i-th.
func wide(i int) float64 { return max(1.5, 6-2*float64(i)) }

// draw draws values by the number of programs, which the lower axis has by its logarithm.
func draw(title, machine, unit string, curves []curve) string {
	most, widest := 0.0, 1
	ticks := make(map[int]bool)
	for _, c := range curves {
		for _, p := range c.points {
			most, widest = max(most, c.value(p)), max(widest, p.Sharers)
			ticks[p.Sharers] = true
		}
	}
	top := nice(most)
	right, bottom := float64(width-marginRight), float64(height-x)
	across := func(sharers int) float64 {
		return marginLeft + (right-marginLeft)*math.Log2(float64(sharers))/max(1, math.Log2(float64(widest)))
	}
	up := func(value float64) float64 { return bottom - (bottom-marginTop)*value/top }

	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&out, `<text x="10" y="18" font-size="13" font-weight="bold">%s</text><text x="10" y="34" fill="#555">%s</text>`+"\n", html.EscapeString(title), html.EscapeString(machine))
	fmt.Fprintf(&out, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", marginLeft-6, marginTop-10, html.EscapeString(unit))
	for i := range 5 {
		value := top * float64(i) / 4
		fmt.Fprintf(&out, `<path d="M%d %.1f H%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", marginLeft, up(value), right, marginLeft-6, up(value)+4, value)
	}
	for n := range widest + 1 {
		if ticks[n] {
			fmt.Fprintf(&out, `<text x="%.1f" y="%.1f" text-anchor="middle">%d</text>`+"\n", across(n), bottom+18, n)
		}
	}
	fmt.Fprintf(&out, `<text x="%.1f" y="%.1f" text-anchor="middle">programs that share the GPU</text>`+"\n", (marginLeft+right)/2, bottom+38)
	for i, c := range curves {
		dash := ""
		if c.dashed {
			dash = ` stroke-dasharray="5 4"`
		}
		var path []string
		for _, p := range c.points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", across(p.Sharers), up(c.value(p))))
			fmt.Fprintf(&out, `<circle cx="%.1f" cy="%.1f" r="%g" fill="%s"/>`+"\n", across(p.Sharers), up(c.value(p)), c.wide/2+2, c.colour)
		}
		fmt.Fprintf(&out, `<polyline points="%s" fill="none" stroke="%s" stroke-width="%g"%s/>`+"\n", strings.Join(path, " "), c.colour, c.wide, dash)
		y := marginTop + 18*i
		fmt.Fprintf(&out, `<path d="M%.1f %d h18" stroke="%s" stroke-width="%g"%s/><text x="%.1f" y="%d">%s</text>`+"\n", right+8, y, c.colour, c.wide, dash, right+30, y+4, html.EscapeString(c.name))
	}
	out.WriteString("</svg>\n")
	return out.String()
}

// nice is the least of 1, 2, 3, 4, 6 and 8 times a power of ten that is not less than a value.
func nice(value float64) float64 {
	if value <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(value)))
	for _, n := range []float64{1, 2, 3, 4, 6, 8} {
		if n*power >= value {
			return n * power
		}
	}
	return 10 * power
}
