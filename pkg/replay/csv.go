package replay

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// record is one line of a CSV file with a header. Its methods remember the first mistake.
type record struct {
	columns map[string]int
	fields  []string
	err     *error
}

// text returns a field; a column that the file lacks is empty.
func (r record) text(column string) string {
	if i, ok := r.columns[column]; ok && i < len(r.fields) {
		return strings.TrimSpace(r.fields[i])
	}
	return ""
}

// number returns a whole number; an empty field is 0.
func (r record) number(column string) int64 {
	text := r.text(column)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && (n < 0 || n > Unlimited) {
		err = errors.New("out of range")
	}
	if err != nil && *r.err == nil {
		*r.err = fmt.Errorf("column %s: %q: want a whole number of 0 or more", column, text)
	}
	return n
}

// decimal returns a number; an empty field is 0.
func (r record) decimal(column string) float64 {
	text := r.text(column)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil && *r.err == nil {
		*r.err = fmt.Errorf("column %s: %q: want a number", column, text)
	}
	return n
}

// eachRecord calls each with the lines of a CSV file that has these columns.
func eachRecord(from io.Reader, want []string, each func(record)) error {
	reader := csv.NewReader(from)
	reader.FieldsPerRecord = -1
	reader.Comment = '#'
	header, err := reader.Read()
	if err != nil {
		return fmt.Errorf("read the header: %w", err)
	}
	columns := make(map[string]int)
	for i, name := range header {
		columns[strings.TrimSpace(strings.TrimPrefix(name, "\ufeff"))] = i
	}
	for _, name := range want {
		if _, ok := columns[name]; !ok {
			return fmt.Errorf("column %s is missing: the file has %s", name, strings.Join(header, ","))
		}
	}
	for {
		fields, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var mistake error
		each(record{columns: columns, fields: fields, err: &mistake})
		if mistake != nil {
			line, _ := reader.FieldPos(0)
			return fmt.Errorf("line %d: %w", line, mistake)
		}
	}
}
