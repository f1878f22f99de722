package table

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// checkList compares the output of List with a text that begins with an empty line.
func checkList[R any](t *testing.T, columns []Column[R], rows []R, options ListOptions, want string) {
	t.Helper()
	var out bytes.Buffer
	if err := List(&out, columns, rows, options); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

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
		"as wide as before": {ListOptions{Layout: &Layout{widths: map[string]int{"NAME": 9, "LAST": 4}}}, `
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
		t.Run(name, func(t *testing.T) { checkList(t, columns, rows, tc.options, tc.want) })
	}
}

func TestListFitsTheTerminal(t *testing.T) {
	columns := []Column[[4]string]{
		{Header: "NAME", Cell: func(r [4]string) string { return r[0] }},
		{Header: "ADDRESS", Omit: 2, Cell: func(r [4]string) string { return r[1] }},
		{Header: "USED", Omit: 1, Cell: func(r [4]string) string { return r[2] }, Share: func([4]string) (part, whole float64) { return 1, 2 }},
		{Header: "REASON", Cut: true, Cell: func(r [4]string) string { return r[3] }},
	}
	rows := [][4]string{{"gpu-a", "10.0.0.1", "3", "needs 3 GiB on one GPU; free: GPU0 2, GPU1 2"}, {"gpu-b", "10.0.0.2", "4", "机房维护机房维护机房维护机房维护"}}
	for name, tc := range map[string]struct {
		options ListOptions
		want    string
	}{
		"no terminal": {ListOptions{}, `
NAME   ADDRESS   USED  REASON
gpu-a  10.0.0.1  3     needs 3 GiB on one GPU; free: GPU0 2, GPU1 2
gpu-b  10.0.0.2  4     机房维护机房维护机房维护机房维护
`},
		"the last column is cut": {ListOptions{Columns: 64}, `
NAME   ADDRESS   USED  REASON
gpu-a  10.0.0.1  3     needs 3 GiB on one GPU; free: GPU0 2, GP…
gpu-b  10.0.0.2  4     机房维护机房维护机房维护机房维护
`},
		"bars go before columns": {ListOptions{Columns: 64, Bars: true}, `
NAME   ADDRESS   USED  REASON
gpu-a  10.0.0.1  3     needs 3 GiB on one GPU; free: GPU0 2, GP…
gpu-b  10.0.0.2  4     机房维护机房维护机房维护机房维护
`},
		"the highest number goes first": {ListOptions{Columns: 54}, `
NAME   USED  REASON
gpu-a  3     needs 3 GiB on one GPU; free: GPU0 2, GP…
gpu-b  4     机房维护机房维护机房维护机房维护
`},
		"a reason keeps a least width": {ListOptions{Columns: 10}, `
NAME   REASON
gpu-a  needs 3 GiB on one…
gpu-b  机房维护机房维护机…
`},
		"wide tables have no limit": {ListOptions{Columns: 10, Wide: true}, `
NAME   ADDRESS   USED  REASON
gpu-a  10.0.0.1  3     needs 3 GiB on one GPU; free: GPU0 2, GPU1 2
gpu-b  10.0.0.2  4     机房维护机房维护机房维护机房维护
`},
		"later rows have the columns of the first": {ListOptions{Columns: 200, NoHeaders: true, Layout: &Layout{widths: map[string]int{"NAME": 7, "REASON": 6}}}, `
gpu-a    needs 3 GiB on one GPU; free: GPU0 2, GPU1 2
gpu-b    机房维护机房维护机房维护机房维护
`},
	} {
		t.Run(name, func(t *testing.T) { checkList(t, columns, rows, tc.options, tc.want) })
	}
}

func TestBar(t *testing.T) {
	for _, tc := range []struct {
		part, whole float64
		full        int
	}{{0, 10, 0}, {0.1, 10, 1}, {5, 10, 5}, {9.9, 10, 9}, {10, 10, 10}, {26, 16, 10}, {1, 0, 0}, {-1, 10, 0}} {
		if got := bar(tc.part, tc.whole); strings.Count(got, "█") != tc.full || len([]rune(got)) != 10 {
			t.Errorf("bar(%g, %g) = %s, want %d full", tc.part, tc.whole, got, tc.full)
		}
	}
}
