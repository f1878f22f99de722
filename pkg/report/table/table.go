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

// Colour is a colour of a terminal.
type Colour int

// The colours, by their numbers in ECMA-48 (SGR).
const (
	Plain  Colour = 0
	Red    Colour = 31
	Green  Colour = 32
	Yellow Colour = 33
)

// none stands for an empty cell.
const none = "<none>"

// Column is a column of a list.
type Column[R any] struct {
	Header string
	Wide   bool // shown only with -o wide
	Hidden bool // never shown, because it would be empty
	Ages   bool // shows an age; a new age does not count as a change of the row
	Omit   int  // on a narrow terminal, the column with the highest number is omitted first; 0 keeps the column
	Cut    bool // may be cut at the terminal's edge: only for the last column, with long text
	Cell   func(R) string
	Share  func(R) (part, whole float64) // drawn as a bar before the cell; nil for no bar
	Colour func(R) Colour                // nil for plain
	Notes  []Note[R]                     // legend
}

// Note is a line of a legend. A row needs the line if About returns true.
type Note[R any] struct {
	Text  string
	About func(R) bool
}

// ListOptions are the options for printing a list.
type ListOptions struct {
	Wide      bool
	NoHeaders bool
	Colours   bool
	Bars      bool // the output is a terminal that can draw bars

	// Columns is the width of the terminal. List fits the table to it, unless Wide is set; 0 sets no limit.
	Columns int

	// Layout is the layout of the rows printed before. List aligns new rows with it and updates it. It may
	// be nil if all rows are printed at once.
	Layout *Layout
}

// Layout describes the columns that a list printed.
type Layout struct {
	Cut    bool           // List cut a cell at the terminal's edge
	widths map[string]int // by header
}

const (
	gap       = 2  // spaces between two columns
	wantedCut = 40 // List omits other columns until a column that may be cut gets this width
	leastCut  = 20 // least width of a column that may be cut
)

// VisibleColumns returns the visible columns.
func VisibleColumns[R any](columns []Column[R], wide bool) []Column[R] {
	return slices.DeleteFunc(slices.Clone(columns), func(c Column[R]) bool { return c.Hidden || c.Wide && !wide })
}

// Legend returns the notes of the layout's columns that at least one row needs, each text once.
func Legend[R any](l *Layout, columns []Column[R], rows []R) (lines []string) {
	for _, c := range columns {
		if _, shown := l.widths[c.Header]; !shown {
			continue
		}
		for _, n := range c.Notes {
			if !slices.Contains(lines, n.Text) && slices.ContainsFunc(rows, n.About) {
				lines = append(lines, n.Text)
			}
		}
	}
	return lines
}

// Cells returns the text of each column for a row. Empty texts become "<none>".
func Cells[R any](columns []Column[R], row R) (cells []string) {
	for _, c := range columns {
		cells = append(cells, cmp.Or(Clean(c.Cell(row)), none))
	}
	return cells
}

// List prints each row on one line, with aligned columns. If a line exceeds the terminal's width, List omits
// the bars, then columns, and finally cuts the last column.
func List[R any](w io.Writer, columns []Column[R], rows []R, o ListOptions) error {
	columns = VisibleColumns(columns, o.Wide)
	l := o.Layout
	if l == nil {
		l = &Layout{}
	}
	limit := o.Columns
	if o.Wide || limit <= 0 {
		limit = math.MaxInt
	}
	columns, lines, widths := arrange(l, columns, rows, o, limit)
	l.widths = make(map[string]int)
	for i, c := range columns {
		l.widths[c.Header] = widths[i]
	}
	room := limit
	for _, width := range widths[:max(0, len(widths)-1)] {
		room -= width + gap
	}
	for i, c := range columns {
		for _, line := range lines {
			if whole := line[i]; c.Cut {
				line[i] = cut(whole, max(room, leastCut))
				l.Cut = l.Cut || line[i] != whole
			}
		}
	}
	_, err := w.Write(render(columns, rows, lines, widths, o.Colours))
	return err
}

// render returns the lines with aligned cells.
func render[R any](columns []Column[R], rows []R, lines [][]string, widths []int, colours bool) []byte {
	var out bytes.Buffer
	for n, line := range lines {
		row := n - (len(lines) - len(rows))
		for i, cell := range line {
			colour := Plain
			if c := columns[i].Colour; colours && c != nil && row >= 0 {
				colour = c(rows[row])
			}
			out.WriteString(colour.paint(cell))
			if i < len(line)-1 {
				out.WriteString(strings.Repeat(" ", widths[i]-Width(cell)+gap))
			}
		}
		out.WriteByte('\n')
	}
	return out.Bytes()
}

// arrange returns the columns that fit the limit, with their cells and widths. If the layout has columns
// of earlier rows, arrange returns these columns, whatever the limit.
func arrange[R any](l *Layout, columns []Column[R], rows []R, o ListOptions, limit int) (kept []Column[R], lines [][]string, widths []int) {
	if l.widths != nil {
		columns = slices.DeleteFunc(columns, func(c Column[R]) bool { _, ok := l.widths[c.Header]; return !ok })
	}
	lines = renderCells(columns, rows, o)
	widths = columnWidths(l, columns, lines)
	if o.Bars && total(columns, widths) > limit {
		o.Bars = false
		lines = renderCells(columns, rows, o)
		widths = columnWidths(l, columns, lines)
	}
	for l.widths == nil && total(columns, widths) > limit {
		omitted := 0
		for i, c := range columns {
			if c.Omit > columns[omitted].Omit {
				omitted = i
			}
		}
		if columns[omitted].Omit == 0 {
			break
		}
		columns, widths = slices.Delete(columns, omitted, omitted+1), slices.Delete(widths, omitted, omitted+1)
		for i := range lines {
			lines[i] = slices.Delete(lines[i], omitted, omitted+1)
		}
	}
	return columns, lines, widths
}

// renderCells returns the cells of the headers and of each row.
func renderCells[R any](columns []Column[R], rows []R, o ListOptions) (lines [][]string) {
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
				cells[i] = bar(c.Share(r)) + " " + cells[i]
			}
		}
		lines = append(lines, cells)
	}
	return lines
}

// columnWidths returns the width of each column: the width of its widest cell, and at least the layout's.
func columnWidths[R any](l *Layout, columns []Column[R], lines [][]string) []int {
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = l.widths[c.Header]
		for _, line := range lines {
			widths[i] = max(widths[i], Width(line[i]))
		}
	}
	return widths
}

// total returns the width of a table. A column that may be cut counts with at most wantedCut.
func total[R any](columns []Column[R], widths []int) (sum int) {
	for i, c := range columns {
		if c.Cut {
			sum += gap + min(widths[i], wantedCut)
		} else {
			sum += gap + widths[i]
		}
	}
	return sum - gap
}

// cut shortens a text to a width in columns of the terminal.
func cut(s string, columns int) string {
	if Width(s) <= columns {
		return s
	}
	used := 1 // the ellipsis
	for i, r := range s {
		if used += Width(string(r)); used > columns {
			return strings.TrimRight(s[:i], " ") + "…"
		}
	}
	return s
}

// Width returns the number of terminal columns of a text: two for a wide character, none for a combining character.
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

// bar draws part/whole as a bar of ten characters. It is full if the part exceeds the whole, and never
// empty for a part above 0.
func bar(part, whole float64) string {
	const cells = 10
	full := 0
	if part > 0 && whole > 0 {
		full = max(1, min(cells, int(math.Floor(part/whole*cells))))
	}
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full)
}

// Load returns the colour for a used part of a whole: yellow from 90 per cent, and red above 100.
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
	Problems   []inspect.Problem `json:"problems,omitempty"` // objects that could not be read
}

// NewItems returns rows as a list for programs. Parameter kind is the list's kind, for example "GPUList".
func NewItems[R any](kind string, rows []R, problems []inspect.Problem) Items[R] {
	if rows == nil {
		rows = []R{}
	}
	return Items[R]{APIVersion: inspect.APIVersion, Kind: kind, Items: rows, Problems: problems}
}

// Clean replaces characters that control a terminal or break a line, because names and reasons come from
// other users' objects.
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
