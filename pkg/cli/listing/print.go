package listing

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/printers"
)

// Print prints rows, with headers or without, in the format of the flags.
func Print[R any](l *Flags, v View[R], report inspect.Report, rows []R, headers bool) error {
	switch l.Output {
	case "json":
		return printers.ListJSON(l.Out, v.Kind, rows, report.Problems)
	case "yaml":
		return cmdutil.YAML(l.Out, func(w io.Writer) error { return printers.ListJSON(w, v.Kind, rows, report.Problems) })
	case "name":
		for _, row := range rows {
			fmt.Fprintln(l.Out, printers.Clean(v.Name(row)))
		}
		return nil
	}
	if len(rows) == 0 {
		return nil
	}
	wide := l.Output == "wide"
	err := printers.List(l.Out, v.Columns(report), rows, printers.ListOptions{Wide: wide, NoHeaders: !headers, Colours: l.Colours, Bars: l.Bars, Widths: &l.widths})
	if err != nil || !headers || v.Notes == nil {
		return err
	}
	if notes := v.Notes(rows, wide); len(notes) > 0 {
		_, err = fmt.Fprintln(l.Out, "\n"+strings.Join(notes, "\n"))
	}
	return err
}
