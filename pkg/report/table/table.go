package table

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/width"

	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// Colour is one of a terminal's.
type Colour int

// The colours, by their numbers in ECMA-48 (SGR).
const (
	Plain  Colour = 0
	Red    Colour = 31
	Green  Colour = 32
	Yellow Colour = 33
)

// None stands for what a row has not.
const None = "<none>"

// Column is one of a list.
type Column[R any] struct {
	Header string
	Wide   bool // shown with -o wide alone
	Hidden bool // never shown: there is nothing to tell
	Ages   bool // changes as time goes by, which is no change of the row
	Cell   func(R) string
	Share  func(R) (part, whole float64) // drawn as a bar before the cell; nil: there is none
	Colour func(R) Colour                // nil: plain
}

// ListOptions say how a list is printed.
type ListOptions struct {
	Wide      bool
	NoHeaders bool
	Colours   bool
	Bars      bool // a terminal reads it that can draw them

	// Widths are those of the columns at least, and become those that were printed: rows that
	// are printed later line up with them. Nil: nothing is printed later.
	Widths *[]int
}

// Shown returns those of the columns that are shown.
func Shown[R any](columns []Column[R], wide bool) []Column[R] {
	return slices.DeleteFunc(slices.Clone(columns), func(c Column[R]) bool { return c.Hidden || c.Wide && !wide })
}

// Cells returns what stands in the columns of a row.
func Cells[R any](columns []Column[R], row R) (cells []string) {
	for _, c := range columns {
		cells = append(cells, cmp.Or(Clean(c.Cell(row)), None))
	}
	return cells
}

// List prints rows, each on a line of its own, with their columns lined up.
func List[R any](w io.Writer, columns []Column[R], rows []R, o ListOptions) error {
	columns = Shown(columns, o.Wide)
	var lines [][]string
	if !o.NoHeaders {
		var headers []string
		for _, c := range columns {
			headers = append(headers, c.Header)
		}
		lines = append(lines, headers)
	}
	for _, r := range rows {
		cells := Cells(columns, r)
		for i, c := range columns {
			if o.Bars && c.Share != nil {
				cells[i] = Bar(c.Share(r)) + " " + cells[i]
			}
		}
		lines = append(lines, cells)
	}
	widths := o.widths(lines, len(columns))
	var out bytes.Buffer
	for n, line := range lines {
		row := n - (len(lines) - len(rows))
		for i, cell := range line {
			colour := Plain
			if c := columns[i].Colour; o.Colours && c != nil && row >= 0 {
				colour = c(rows[row])
			}
			out.WriteString(colour.paint(cell))
			if i < len(line)-1 {
				out.WriteString(strings.Repeat(" ", widths[i]-Width(cell)+2))
			}
		}
		out.WriteByte('\n')
	}
	_, err := w.Write(out.Bytes())
	return err
}

// widths returns how wide each column is, and keeps it for the next list where that is asked for.
func (o ListOptions) widths(lines [][]string, columns int) []int {
	widths := make([]int, columns)
	if o.Widths != nil {
		copy(widths, *o.Widths)
	}
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], Width(cell))
		}
	}
	if o.Widths != nil {
		*o.Widths = widths
	}
	return widths
}

// Width returns the columns that a terminal gives to a text: two for a wide character, none for a combining one.
func Width(s string) (columns int) {
	for _, r := range s {
		switch kind := width.LookupRune(r).Kind(); {
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		case kind == width.EastAsianWide, kind == width.EastAsianFullwidth:
			columns += 2
		default:
			columns++
		}
	}
	return columns
}

func (c Colour) paint(s string) string {
	if c == Plain {
		return s
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", c, s)
}

// Bar draws a share of a whole, ten signs wide. What is more than the whole is
// full; a share that is not nothing shows.
func Bar(part, whole float64) string {
	const cells = 10
	full := 0
	if part > 0 && whole > 0 {
		full = max(1, min(cells, int(math.Floor(part/whole*cells))))
	}
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full)
}

// Load is the colour of a share that is in use.
func Load(part, whole float64) Colour {
	switch {
	case whole <= 0 || part < 0.9*whole:
		return Plain
	case part > whole:
		return Red
	default:
		return Yellow
	}
}

// Items is the JSON form of a list.
type Items[R any] struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Items      []R               `json:"items"`
	Problems   []inspect.Problem `json:"problems,omitempty"` // what could not be read
}

// NewItems returns rows as a list for programs. Kind is that of the list, "GPUList".
func NewItems[R any](kind string, rows []R, problems []inspect.Problem) Items[R] {
	if rows == nil {
		rows = []R{}
	}
	return Items[R]{APIVersion: inspect.APIVersion, Kind: kind, Items: rows, Problems: problems}
}

// Clean replaces what would steer a terminal or break a line: names and reasons
// come from other people's objects.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		default:
			return r
		}
	}, s)
}
