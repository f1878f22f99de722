package listing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fieldsOf returns the fields as paths below the path by. If by is not a plain path, it returns the
// fields alone.
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

// bare returns a path without its braces and its leading dot.
func bare(path string) string {
	return strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(path, "{"), "}"), ".")
}

// Sort sorts rows by the field of --sort-by in their JSON form: numbers by value, other values as text.
// Rows without the field come first. Sort returns an error if no row has the field, unless the flag's
// help names the field.
func Sort[R any](l *Flags, rows []R) error {
	by := l.SortBy
	if by == "" {
		return nil
	}
	path, err := pathOf("sort-by", by)
	if err != nil {
		return fmt.Errorf("--sort-by: %w", err)
	}
	type keyed struct {
		row    R
		number float64
		text   string
	}
	sorted := make([]keyed, 0, len(rows))
	known := len(rows) == 0
	for _, row := range rows {
		values, err := valuesAt(path, row)
		if err != nil {
			return fmt.Errorf("--sort-by: %w", err)
		}
		k := keyed{row: row}
		if len(values) > 0 {
			known = true
			switch value := values[0].(type) {
			case int64:
				k.number = float64(value)
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
	if !known && !slices.Contains(l.fields, "."+bare(by)) {
		return fmt.Errorf("--sort-by: no row has the field %s; -o json shows all fields", by)
	}
	slices.SortStableFunc(sorted, func(a, b keyed) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.text, b.text))
	})
	for i, k := range sorted {
		rows[i] = k.row
	}
	return nil
}
