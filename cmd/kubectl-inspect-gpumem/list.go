package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/inspect"
	"github.com/gpumem/gpumem/pkg/printers"
)

// view is a list of something, one row for each.
type view[R any] struct {
	kind    string // of the list in JSON
	read    func(context.Context) (inspect.Report, cluster.Usage, error)
	rows    func(inspect.Report, cluster.Usage) []R
	columns func(inspect.Report) []printers.Column[R]
	name    func(R) string                     // for -o name
	id      func(R) string                     // of what the row is about
	notes   func(rows []R, wide bool) []string // the legend; nil: there is none

	// end returns the last row of what is there no more, for who watches; nil: there is none.
	end func(R) R
}

// listing are the flags of a list.
type listing struct {
	*options
	sortBy string
	fields []string // that there are to sort by, though no row may have one
	watch  bool
}

// addFlags says what a selector selects, and by which fields rows may be sorted.
func (l *listing) addFlags(cmd *cobra.Command, selects string, fields ...string) {
	l.fields = fields
	f := cmd.Flags()
	f.StringVarP(&l.output, "output", "o", "", "Output format: "+strings.Join(formats(), ", ")+"; a table unless set")
	f.StringVarP(&l.selector, "selector", "l", "", "Show only "+selects+" whose labels match, for example team=a")
	f.BoolVar(&l.noHeaders, "no-headers", false, "Print rows alone, without headers")
	f.StringVar(&l.sortBy, "sort-by", "", "Sort by a field of the JSON form, as a JSONPath: "+strings.Join(fields, " or "))
	// It fails for a flag that does not exist, which a test would show.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats(), cobra.ShellCompDirectiveNoFileComp))
}

// addWatchFlags adds those of lists of what is there.
func (l *listing) addWatchFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVarP(&l.watch, "watch", "w", false, "After listing, print rows that change")
	f.BoolVarP(&l.allNamespaces, "all-namespaces", "A", false, "List the pods of all namespaces, which is the default")
}

func (l *listing) validate() error {
	var errs []error
	if l.output != "" && !slices.Contains(formats(), l.output) {
		errs = append(errs, fmt.Errorf("--output is %q, want one of %s", l.output, strings.Join(formats(), ", ")))
	}
	if l.watch && (l.output == "json" || l.output == "yaml") {
		errs = append(errs, fmt.Errorf("--watch prints rows, and has no place in the output of -o %s", l.output))
	}
	if _, err := labels.Parse(l.selector); err != nil {
		errs = append(errs, fmt.Errorf("--selector: %w", err))
	}
	if _, err := sortPath(l.sortBy); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// show prints a view, and then the rows that change if it is to watch.
func show[R any](ctx context.Context, l *listing, v view[R]) error {
	report, used, err := v.read(ctx)
	if err != nil {
		return err
	}
	rows := v.rows(report, used)
	if err := sortRows(rows, l.sortBy, l.fields); err != nil {
		return err
	}
	report.Problems = slices.Concat(report.Problems, used.Problems)
	if err := printRows(l, v, report, rows, !l.noHeaders); err != nil {
		return err
	}
	if len(rows) == 0 && len(report.Problems) == 0 && l.output != "json" && l.output != "yaml" {
		fmt.Fprintln(l.ErrOut, "Nothing found"+l.within(v.kind))
	}
	incomplete := l.complain(report)
	if !l.watch {
		return incomplete
	}
	return follow(ctx, l, v, report, rows)
}

// within says of which namespace alone pods are listed: other things are in none.
func (l *listing) within(kind string) string {
	if namespace := l.namespace(); namespace != "" && kind == podKind {
		return " in namespace " + printers.Clean(namespace)
	}
	return ""
}

// follow prints the rows that change, and those that end where the view tells of them.
func follow[R any](ctx context.Context, l *listing, v view[R], report inspect.Report, rows []R) error {
	seen, headed := linesOf(l, v, report, rows), len(rows) > 0
	return l.cluster.OnChange(ctx, func(ctx context.Context) error {
		report, used, err := v.read(ctx)
		if err != nil {
			return err
		}
		if report.RequestedUnknown { // as if all pods were gone, which they are not
			_ = l.complain(report)
			return nil
		}
		now := v.rows(report, used)
		lines := linesOf(l, v, report, now)
		var fresh []R
		for _, row := range rows {
			if _, there := lines[v.id(row)]; !there && v.end != nil && l.output != "name" {
				fresh = append(fresh, v.end(row))
			}
		}
		for _, row := range now {
			if id := v.id(row); seen[id] != lines[id] {
				fresh = append(fresh, row)
			}
		}
		seen, rows = lines, now
		first := !headed && len(fresh) > 0
		headed = headed || first
		return printRows(l, v, report, fresh, first && !l.noHeaders)
	})
}

// linesOf returns what is printed of each row, by what it is about: what nobody sees does
// not change it.
func linesOf[R any](l *listing, v view[R], report inspect.Report, rows []R) map[string]string {
	columns := printers.Shown(v.columns(report), l.output == "wide")
	lines := make(map[string]string, len(rows))
	for _, row := range rows {
		lines[v.id(row)] = strings.Join(printers.Cells(columns, row), "\x00")
	}
	return lines
}

func printRows[R any](l *listing, v view[R], report inspect.Report, rows []R, headers bool) error {
	switch l.output {
	case "json":
		return printers.ListJSON(l.Out, v.kind, rows, report.Problems)
	case "yaml":
		var text bytes.Buffer
		if err := printers.ListJSON(&text, v.kind, rows, report.Problems); err != nil {
			return err
		}
		out, err := yaml.JSONToYAML(text.Bytes())
		if err != nil {
			return err
		}
		_, err = l.Out.Write(out)
		return err
	case "name":
		for _, row := range rows {
			fmt.Fprintln(l.Out, printers.Clean(v.name(row)))
		}
		return nil
	}
	if len(rows) == 0 {
		return nil
	}
	wide := l.output == "wide"
	err := printers.List(l.Out, v.columns(report), rows, printers.ListOptions{Wide: wide, NoHeaders: !headers, Colours: l.colours()})
	if err != nil || !headers || v.notes == nil {
		return err
	}
	if notes := v.notes(rows, wide); len(notes) > 0 {
		_, err = fmt.Fprintln(l.Out, "\n"+strings.Join(notes, "\n"))
	}
	return err
}

// colours reports whether a terminal reads the output, and its user has not
// asked for none (no-color.org).
func (o *options) colours() bool {
	file, ok := o.Out.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

func texts[R any](rows []R) []string {
	out := make([]string, 0, len(rows))
	for _, row := range rows {
		text, _ := json.Marshal(row) // rows are numbers and texts
		out = append(out, string(text))
	}
	return out
}

// fieldsOf returns what sorts by fields of what sorts by something without an order, where
// that is a plain path; else the fields alone.
func fieldsOf(by string, fields []string) []string {
	path := bare(by)
	if path == "" || strings.ContainsAny(path, "$@[]*?'\"") || strings.Contains(path, "..") || strings.HasPrefix(path, ".") {
		return fields
	}
	for i := range fields {
		fields[i] = "." + path + "." + fields[i]
	}
	return fields
}

// bare is what is in the braces of a path, if it has any, without the dot that begins it.
func bare(path string) string {
	return strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(path, "{"), "}"), ".")
}

// sortPath reads what kubectl takes as --sort-by: with braces or without.
func sortPath(path string) (*jsonpath.JSONPath, error) {
	if path == "" {
		return nil, nil
	}
	if !strings.HasPrefix(path, "{") {
		path = "{." + strings.TrimPrefix(path, ".") + "}"
	}
	p := jsonpath.New("sort-by").AllowMissingKeys(true)
	if err := p.Parse(path); err != nil {
		return nil, fmt.Errorf("--sort-by: %w", err)
	}
	return p, nil
}

// sortRows sorts by a field of the JSON form: numbers by value, all else as
// texts. Rows without the field come first; that all are without is a mistake, unless it is
// one of the fields that are named.
func sortRows[R any](rows []R, by string, fields []string) error {
	path, err := sortPath(by)
	if path == nil || err != nil {
		return err
	}
	type keyed struct {
		row    R
		number float64
		text   string
	}
	sorted := make([]keyed, 0, len(rows))
	known := len(rows) == 0
	for i, text := range texts(rows) {
		var object any
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			return err
		}
		results, err := path.FindResults(object)
		if err != nil {
			return fmt.Errorf("--sort-by: %w", err)
		}
		k := keyed{row: rows[i]}
		if len(results) > 0 && len(results[0]) > 0 {
			known = true
			switch value := results[0][0].Interface().(type) {
			case float64:
				k.number = value
			case map[string]any:
				return fmt.Errorf("--sort-by: %s has no order: name one of its fields, %s", by, strings.Join(fieldsOf(by, slices.Sorted(maps.Keys(value))), " or "))
			case []any:
				return fmt.Errorf("--sort-by: %s is a list, which has no order", by)
			default:
				k.text = fmt.Sprint(value)
			}
		}
		sorted = append(sorted, k)
	}
	if !known && !slices.Contains(fields, "."+bare(by)) {
		return fmt.Errorf("--sort-by: no row has %s; -o json shows what there is", by)
	}
	slices.SortStableFunc(sorted, func(a, b keyed) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.text, b.text))
	})
	for i, k := range sorted {
		rows[i] = k.row
	}
	return nil
}
