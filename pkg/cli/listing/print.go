package listing

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Print writes rows to w in the format of the flags, with or without headers.
func Print[R any](w io.Writer, l *Flags, v View[R], report inspect.Report, rows []R, headers bool) error {
	switch {
	case l.ForPrograms():
		return l.Output.Print(w, table.NewItems(v.Kind, rows, report.Problems))
	case l.Format == cmdutil.Name:
		for _, row := range rows {
			fmt.Fprintln(w, table.Clean(v.Name(row)))
		}
		return nil
	}
	if len(rows) == 0 {
		return nil
	}
	wide := l.Format == cmdutil.Wide
	columns := columnsOf(l, v, report)
	err := table.List(w, columns, rows, table.ListOptions{Wide: wide, NoHeaders: !headers, Colours: l.Colours, Bars: l.Bars, Columns: l.Terminal, Layout: &l.layout})
	if err != nil || !headers || l.Columns() != "" {
		return err
	}
	notes := table.Legend(&l.layout, columns, rows)
	if l.layout.Cut {
		notes = append(notes, "… marks a text that is cut: -o wide prints it in full.")
	}
	if len(notes) > 0 {
		_, err = fmt.Fprintln(w, "\n"+strings.Join(notes, "\n"))
	}
	return err
}

// columnsOf returns the custom columns of the flags, or else the columns of the view.
func columnsOf[R any](l *Flags, v View[R], report inspect.Report) []table.Column[R] {
	if spec := l.Columns(); spec != "" {
		if columns, err := CustomColumns[R](spec); err == nil { // Validate has checked the specification
			return columns
		}
	}
	return v.Columns(report)
}
