package listing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fieldPaths returns the fields as paths below sortPath. If sortPath is not a plain path, it returns the
// fields alone.
func fieldPaths(sortPath string, fields []string) []string {
	path := bare(sortPath)
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
	sortPath := l.SortBy
	if sortPath == "" {
		return nil
	}
	path, err := pathOf("sort-by", sortPath)
	if err != nil {
		return fmt.Errorf("--sort-by: %w", err)
	}
	type keyed struct {
		row    R
		number float64
		text   string
	}
	sorted := make([]keyed, 0, len(rows))
	fieldSeen := len(rows) == 0
	for _, row := range rows {
		values, err := valuesAt(path, row)
		if err != nil {
			return fmt.Errorf("--sort-by: %w", err)
		}
		k := keyed{row: row}
		if len(values) > 0 {
			fieldSeen = true
			switch value := values[0].(type) {
			case int64:
				k.number = float64(value)
			case float64:
				k.number = value
			case map[string]any:
				return fmt.Errorf("--sort-by: %s has no order: name one of its fields, %s", sortPath, strings.Join(fieldPaths(sortPath, slices.Sorted(maps.Keys(value))), " or "))
			case []any:
				return fmt.Errorf("--sort-by: %s is a list, which has no order", sortPath)
			default:
				k.text = fmt.Sprint(value)
			}
		}
		sorted = append(sorted, k)
	}
	if !fieldSeen && !slices.Contains(l.fields, "."+bare(sortPath)) {
		return fmt.Errorf("--sort-by: no row has the field %s; -o json shows all fields", sortPath)
	}
	slices.SortStableFunc(sorted, func(a, b keyed) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.text, b.text))
	})
	for i, k := range sorted {
		rows[i] = k.row
	}
	return nil
}
