package listing

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/client-go/util/jsonpath"
)

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
	p, err := pathOf("sort-by", path)
	if err != nil {
		return nil, fmt.Errorf("--sort-by: %w", err)
	}
	return p, nil
}

// Sort sorts rows as the flags say.
func Sort[R any](l *Flags, rows []R) error { return SortRows(rows, l.SortBy, l.fields) }

// CheckSort says what is wrong with a path to sort by.
func CheckSort(by string) error {
	_, err := sortPath(by)
	return err
}

// SortRows sorts by a field of the JSON form: numbers by value, all else as
// texts. Rows without the field come first; that all are without is a mistake, unless it is
// one of the fields that are named.
func SortRows[R any](rows []R, by string, fields []string) error {
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
