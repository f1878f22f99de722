package table

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestListLinesColumnsUp(t *testing.T) {
	columns := []Column[string]{
		{Header: "NAME", Cell: func(s string) string { return s }, Colour: func(s string) Colour {
			if s == "bad" {
				return Red
			}
			return Plain
		}},
		{Header: "WIDE", Wide: true, Cell: func(string) string { return "w" }},
		{Header: "LAST", Cell: func(s string) string { return strconv.Itoa(len(s)) }, Share: func(s string) (part, whole float64) { return float64(len(s)), 10 }},
	}
	rows := []string{"ok", "bad", "a\x1b[2J", ""}
	for name, tc := range map[string]struct {
		options ListOptions
		want    string
	}{
		"plain": {ListOptions{}, `
NAME    LAST
ok      2
bad     3
a�[2J   5
<none>  0
`},
		"bars": {ListOptions{Bars: true}, `
NAME    LAST
ok      ██░░░░░░░░ 2
bad     ███░░░░░░░ 3
a�[2J   █████░░░░░ 5
<none>  ░░░░░░░░░░ 0
`},
		"as wide as before": {ListOptions{Widths: &[]int{9}}, `
NAME       LAST
ok         2
bad        3
a�[2J      5
<none>     0
`},
		"wide, without headers": {ListOptions{Wide: true, NoHeaders: true}, `
ok      w  2
bad     w  3
a�[2J   w  5
<none>  w  0
`},
		"colours": {ListOptions{Colours: true}, `
NAME    LAST
ok      2
` + "\x1b[31mbad\x1b[0m" + `     3
a�[2J   5
<none>  0
`},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := List(&out, columns, rows, tc.options); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tc.want, "\n"), out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBar(t *testing.T) {
	for _, tc := range []struct {
		part, whole float64
		full        int
	}{{0, 10, 0}, {0.1, 10, 1}, {5, 10, 5}, {9.9, 10, 9}, {10, 10, 10}, {26, 16, 10}, {1, 0, 0}, {-1, 10, 0}} {
		if got := Bar(tc.part, tc.whole); strings.Count(got, "█") != tc.full || len([]rune(got)) != 10 {
			t.Errorf("Bar(%g, %g) = %s, want %d full", tc.part, tc.whole, got, tc.full)
		}
	}
}
