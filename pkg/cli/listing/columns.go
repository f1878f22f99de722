package listing

import (
	"encoding/json"
	"fmt"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

	"github.com/gpumem/gpumem/pkg/report/table"
)

// CustomColumns parses HEADER:.field,..., the form of kubectl's -o custom-columns. The fields refer to
// the JSON form of a row.
func CustomColumns[R any](spec string) (columns []table.Column[R], err error) {
	for part := range strings.SplitSeq(spec, ",") {
		header, field, ok := strings.Cut(part, ":")
		path, err := pathOf("custom-columns", field)
		switch {
		case !ok || field == "":
			return nil, fmt.Errorf("--output: custom column %q, want HEADER:.field", part)
		case err != nil:
			return nil, fmt.Errorf("--output: custom column %q: %w", part, err)
		}
		columns = append(columns, table.Column[R]{Header: header, Cell: func(row R) string { return cell(path, row) }})
	}
	return columns, nil
}

// cell returns the values at a path of a row, separated by commas; empty on an error.
func cell(path *jsonpath.JSONPath, row any) string {
	values, err := valuesAt(path, row)
	if err != nil {
		return ""
	}
	texts := make([]string, 0, len(values))
	for _, value := range values {
		texts = append(texts, fmt.Sprint(value))
	}
	return strings.Join(texts, ",")
}

// valuesAt returns the values at a path in the JSON form of a row.
func valuesAt(path *jsonpath.JSONPath, row any) (values []any, err error) {
	var object any
	text, err := json.Marshal(row)
	if err == nil {
		err = utiljson.Unmarshal(text, &object)
	}
	if err != nil {
		return nil, err
	}
	results, err := path.FindResults(object)
	for _, result := range results {
		for _, value := range result {
			values = append(values, value.Interface())
		}
	}
	return values, err
}

// pathOf parses a JSONPath with or without braces, as kubectl does. Rows may lack the field.
func pathOf(name, path string) (*jsonpath.JSONPath, error) {
	if !strings.HasPrefix(path, "{") {
		path = "{." + strings.TrimPrefix(path, ".") + "}"
	}
	p := jsonpath.New(name).AllowMissingKeys(true)
	return p, p.Parse(path)
}
