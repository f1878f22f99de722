// Package listing prints lists of rows: as a table, as JSON or YAML, by name, sorted, and again
// when rows change.
//
// # Invariants
//
//   - A View says what there is to print and how; the Flags say what of it the user wants. No
//     command has a format of its own.
//   - What cannot be read is named after the rows, on stderr. While the pods cannot be read no row
//     is taken to have ended.
//
// # Decisions
//
// A row has changed when what is printed of it has: what is not shown does not print it again, and
// neither does an age.
//
// Rows are sorted by a field of their JSON form, which -o json shows, so that there are no names
// of columns to learn.
package listing
